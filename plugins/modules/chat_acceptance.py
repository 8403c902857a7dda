#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: chat_acceptance
short_description: Ask the served model questions and judge the answers
version_added: 0.1.0
description:
  - Sends real chat completions to an OpenAI compatible API and checks content, reasoning, tool call and usage, three requests in
    a row, two at a time, and one streamed, and that nobody is answered without the key. Measures tokens per second and the time to the first token.
  - The questions and what must come back belong to the preset.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
  - dgxspark.serving.findings
options:
  url:
    description: Address of the API with its C(/v1), for example C(http://127.0.0.1:8000/v1).
    type: str
    required: true
  api_key_file:
    description: File on the host that holds the API's key. Empty when the API has none.
    type: path
  served_name:
    description: Name under which the model is served.
    type: str
    required: true
  questions:
    description:
      - What to ask. Keys C(name), C(prompt), C(content_matches) (regular expression), C(reasoning) (must there be some), C(tool)
        (a function to offer, which must then be called), C(tool_arguments_match) (argument to regular expression).
    type: list
    elements: dict
    required: true
  max_tokens:
    description: Tokens that an answer may have.
    type: int
    default: 1024
  brief:
    description:
      - Whether each question is asked once only, without further requests in a row, at a time, and streamed. For an engine that was
        accepted before and has not changed.
    type: bool
    default: false
  units:
    description: Systemd units of this host that must be active after the answers. An answer may be an engine's last.
    type: list
    elements: str
    default: []
  timeout_seconds:
    description: Seconds for one answer.
    type: float
    default: 300
  expected_tokens_per_second:
    description: A slower single stream is a warning.
    type: float
    default: 0.0
  expected_first_token_seconds:
    description: A later first token of a streamed answer is a warning. V(0) expects nothing.
    type: float
    default: 0.0
"""

EXAMPLES = r"""
- name: Does it calculate?
  dgxspark.serving.chat_acceptance:
    url: http://127.0.0.1:8000/v1
    api_key_file: /etc/dgxspark/api-key
    served_name: qwen35
    questions:
      - name: arithmetic
        prompt: What is 2+2?
        content_matches: '\b4\b'
        reasoning: true
    fail_on: [error]
  become: true
"""

RETURN = r"""
answers:
  description: Each answer with content, reasoning, tool calls, tokens, seconds and tokens per second.
  returned: always
  type: list
  elements: dict
tokens_per_second:
  description: The best single stream.
  returned: always
  type: float
  sample: 27.4
first_token_seconds:
  description: Until the first token of the streamed answer. Zero if an answer before it was wrong.
  returned: always
  type: float
  sample: 0.41
findings:
  description: What is wrong, worst first.
  returned: always
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._acceptance import (
    Expected,
    accept,
    judge_key,
    judge_units,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._chat_api import ChatApi, read_key
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import (
    as_dicts,
    describe,
    findings_argument_spec,
    refused,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._host_python import require_requests
from ansible_collections.dgxspark.serving.plugins.module_utils._rank_snapshot import unit_states
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import WorkloadError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "api_key_file": {"type": "path"},
            "served_name": {"type": "str", "required": True},
            "questions": {"type": "list", "elements": "dict", "required": True},
            # Numbers, not secrets: no_log would hide them.
            "max_tokens": {"type": "int", "default": 1024, "no_log": False},
            "timeout_seconds": {"type": "float", "default": 300},
            "brief": {"type": "bool", "default": False},
            "units": {"type": "list", "elements": "str", "default": []},
            "expected_tokens_per_second": {"type": "float", "default": 0.0, "no_log": False},
            "expected_first_token_seconds": {"type": "float", "default": 0.0, "no_log": False},
            **findings_argument_spec(),
        },
        supports_check_mode=True,
    )
    require_requests(module, "to talk to the API")
    options = module.params
    try:
        api = ChatApi(options["url"], read_key(options["api_key_file"]), options["timeout_seconds"])
    except OSError as error:
        module.fail_json(msg=f"api_key_file {options['api_key_file']} cannot be read: {error}. Use become.")
    expected = Expected(options["expected_tokens_per_second"], options["expected_first_token_seconds"])
    acceptance = accept(
        options["questions"],
        options["served_name"],
        options["max_tokens"],
        expected,
        api.post,
        api.stream,
        options["brief"],
    )
    if api.key and not acceptance.failed:
        try:
            acceptance.findings += judge_key(api.status_without_key())
        except OSError as error:
            module.fail_json(msg=f"The API has answered with the key, and a request without it fails: {error}")
    if not acceptance.failed:
        try:
            acceptance.findings += judge_units(unit_states(options["units"]))
        except WorkloadError as error:
            module.fail_json(msg=str(error))
    result: dict[str, Any] = {
        "changed": False,
        "answers": [answer.as_dict() for answer in acceptance.answers],
        "tokens_per_second": acceptance.tokens_per_second,
        "first_token_seconds": acceptance.first_token_seconds,
        "findings": as_dicts(acceptance.findings),
    }
    failing = refused(acceptance.findings, options["fail_on"])
    if failing:
        module.fail_json(msg=describe(failing), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
