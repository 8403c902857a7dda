#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: staging_progress
short_description: Ask the copies that run on a host how far they are
version_added: 0.2.0
description:
  - Looks at the files that M(dgxspark.serving.image_sync) and M(dgxspark.serving.model_weights) write while they run, and at the
    files in which Ansible keeps the results of tasks in the background.
  - Asking is also the sign that the run lives. A copy that nobody asks about for five minutes ends itself.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Changes nothing on the host.
  diff_mode:
    support: none
options:
  jobs:
    description: A dictionary with C(progress) and C(result), paths of files, for each copy.
    type: dict
    required: true
  end:
    description: Names of copies that are to end now.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Ask
  dgxspark.serving.staging_progress:
    jobs:
      image: {progress: /run/dgxspark/staging/image.json, result: /root/.ansible_async/j1}
  become: true
"""

RETURN = r"""
jobs:
  description: For each copy its C(progress) (phase, done, total, time), and its C(result) once it has ended.
  returned: always
  type: dict
"""

import contextlib
import json
import os
import signal
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils import _progress

# A copy that is told to end removes what it has begun with, and ends what it has started.
_END_SECONDS = 10


def _result(path: str) -> dict[str, Any] | None:
    """What Ansible's wrapper of background tasks has written; None while the task runs."""
    try:
        with open(path, encoding="utf-8") as handle:
            content: dict[str, Any] = json.load(handle)
    except (OSError, ValueError):
        return None
    # The wrapper writes {"started": 1, "finished": 0} first, and at the end the module's own result.
    return content if "msg" in content or "changed" in content or content.get("finished") else None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "jobs": {"type": "dict", "required": True},
            "end": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    found = {}
    for name, job in module.params["jobs"].items():
        progress = _progress.read(job["progress"])
        if name in module.params["end"] and progress.get("pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(progress["pid"]), signal.SIGTERM)
        result = _result(job["result"])
        deadline = time.monotonic() + (_END_SECONDS if name in module.params["end"] else 0)
        while result is None and time.monotonic() < deadline:
            # It tidies up, and its result would lie on the host for ever.
            time.sleep(0.2)
            result = _result(job["result"])
        if result is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(job["result"])
        found[name] = {"progress": progress, "result": result}
    module.exit_json(changed=False, jobs=found)


if __name__ == "__main__":
    main()
