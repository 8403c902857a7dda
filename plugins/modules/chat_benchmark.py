#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: chat_benchmark
short_description: Measure tokens per second and the time to the first token of a served model
version_added: 0.2.0
description:
  - Streams chat completions of a fixed length from an OpenAI compatible API, several at a time.
  - The first request is not counted, because it may wait for a compilation.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
options:
  url:
    description: Address of the API with its C(/v1).
    type: str
    default: http://127.0.0.1:8000/v1
  api_key_file:
    description: File on the host that holds the API's key. Empty when the API has none.
    type: path
  served_name:
    description: Name under which the model is served. Empty means the first that the API names.
    type: str
    default: ""
  streams:
    description: How many requests run at a time, a measurement each.
    type: list
    elements: int
    default: [1, 2, 4]
  requests:
    description: How many requests each stream sends, one after the other.
    type: int
    default: 2
  max_tokens:
    description: Tokens of each answer.
    type: int
    default: 256
  prompt:
    description: What is asked. A number is put before it, so that no answer comes from a cache of prompts.
    type: str
    default: Tell a long story about a lighthouse.
  timeout_seconds:
    description: Seconds without a sign of the API.
    type: float
    default: 300
"""

EXAMPLES = r"""
- name: How fast is it?
  dgxspark.serving.chat_benchmark:
    api_key_file: /etc/dgxspark/api-key
    streams: [1, 4, 16]
  become: true
  register: benchmark
"""

RETURN = r"""
served_name: {description: Name of the model., returned: always, type: str}
measurements:
  description:
    - One for each of O(streams). C(tokens_per_second) counts all streams together, C(stream_tokens_per_second) is the median of one
      stream after its first token, C(first_token_seconds) is a median, too.
  returned: always
  type: list
  elements: dict
  sample:
    - {streams: 1, requests: 2, failed: 0, error: "", tokens: 512, seconds: 19.2, tokens_per_second: 26.7,
       stream_tokens_per_second: 27.4, first_token_seconds: 0.41, first_token_seconds_max: 0.43}
table:
  description: The same for a terminal.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._chat_api import ChatApi, read_key
from ansible_collections.dgxspark.serving.plugins.module_utils._chat_benchmark import Load, measure, table
from ansible_collections.dgxspark.serving.plugins.module_utils._host_python import require_requests


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "default": "http://127.0.0.1:8000/v1"},
            "api_key_file": {"type": "path"},
            "served_name": {"type": "str", "default": ""},
            "streams": {"type": "list", "elements": "int", "default": [1, 2, 4]},
            "requests": {"type": "int", "default": 2},
            # A number, not a secret: no_log would hide it.
            "max_tokens": {"type": "int", "default": 256, "no_log": False},
            "prompt": {"type": "str", "default": "Tell a long story about a lighthouse."},
            "timeout_seconds": {"type": "float", "default": 300},
        },
        supports_check_mode=True,
    )
    require_requests(module, "to talk to the API")
    options = module.params
    if min([*options["streams"], options["requests"], options["max_tokens"]], default=0) < 1:
        module.fail_json(msg="streams, requests and max_tokens must be 1 or more.")
    try:
        api = ChatApi(options["url"], read_key(options["api_key_file"]), options["timeout_seconds"])
    except OSError as error:
        module.fail_json(msg=f"api_key_file {options['api_key_file']} cannot be read: {error}. Use become.")
    try:
        name = options["served_name"] or api.served_name()
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"{options['url']} does not say what it serves: {error}")
    load = Load(name, options["prompt"], options["max_tokens"], options["requests"])
    first = api.stream(load.body("[0]"))
    if first.error:
        module.fail_json(msg=f"{options['url']} does not answer: {first.error}")
    rows = [measure(load, streams, api.stream) for streams in options["streams"]]
    lines = table(rows)
    module.exit_json(changed=False, served_name=name, measurements=rows, table=lines, msg="\n".join(lines))


if __name__ == "__main__":
    main()
