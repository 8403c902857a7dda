#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: service_teardown
short_description: Stop what a deployment replaces, and bring it back
version_added: 0.1.0
description:
  - Stops the units and containers that the user named and an earlier deployment of this collection, after it has written a
    restore point on the host. Brings back what a restore point recorded.
  - What is on the keep-list is never stopped. A restart policy or an enabled unit is suspended, and set again by a restore.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Says what would be stopped or brought back.
  diff_mode:
    support: full
options:
  state:
    description:
      - V(stopped) writes a restore point and stops. Nothing to stop means that no restore point is written.
      - V(restored) removes the deployment of this collection and brings back what the restore point says.
      - V(absent) removes the deployment of this collection and brings nothing back.
    type: str
    choices: [stopped, restored, absent]
    default: stopped
  stop:
    description: What to stop, lists C(units), C(containers), C(images), C(labels) and C(processes).
    type: dict
    default: {}
  keep:
    description: What must not be touched, the same lists as O(stop).
    type: dict
    default: {}
  stop_unlisted:
    description: Names of containers and units that hold memory, are on neither list and may be stopped.
    type: list
    elements: str
    default: []
  run:
    description:
      - Id of the run. It names the restore point.
      - With O(state=restored), the restore point to use. When it does not exist (this run stopped nothing), only what this
        collection runs is removed.
    type: str
    required: true
  restore_folder:
    description: Where restore points are kept on the host.
    type: path
    default: /var/lib/dgxspark/restore
"""

EXAMPLES = r"""
- name: Make room
  dgxspark.serving.service_teardown:
    stop:
      units: [vllm-cluster.service]
      containers: [reranker]
    keep:
      containers: [embeddings]
    run: "20261130T101500"
  become: true

- name: Bring back what ran before
  dgxspark.serving.service_teardown:
    state: restored
    run: "20261130T101500"
  become: true
"""

RETURN = r"""
stopped:
  description: What was stopped, or would be in check mode.
  returned: when O(state=stopped)
  type: list
  elements: str
  sample: [unit vllm-cluster.service, container reranker]
kept:
  description: What is alive and on the keep-list.
  returned: when O(state=stopped)
  type: list
  elements: str
  sample: [container embeddings]
missing:
  description: What was named to be stopped and does not exist on this host.
  returned: when O(state=stopped)
  type: list
  elements: str
restore_point:
  description: Path of the record on the host, empty when nothing was stopped.
  returned: when O(state=stopped)
  type: str
  sample: /var/lib/dgxspark/restore/20261130T101500.json
removed:
  description: What of this collection's deployment was removed.
  returned: when O(state=restored) or O(state=absent)
  type: list
  elements: str
restored:
  description: What runs again.
  returned: when O(state=restored)
  type: list
  elements: str
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import (
    RESTORE_FOLDER,
    RestorePoint,
    bring_back,
    plan_teardown,
    record,
    remove_deployment,
    stop_all,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import Selection
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    MANAGED_UNITS,
    WorkloadError,
    containers,
    units,
)


def _stop(module: AnsibleModule) -> dict[str, Any]:
    stop, keep = Selection.parse(module.params["stop"]), Selection.parse(module.params["keep"])
    teardown = plan_teardown(stop, keep, module.params["stop_unlisted"])
    result: dict[str, Any] = {
        "changed": not teardown.empty,
        "stopped": teardown.names,
        "kept": list(teardown.kept),
        "missing": list(teardown.missing),
        "restore_point": "",
        "diff": {
            "before": "".join(f"{name}\n" for name in teardown.names),
            "after": "",
            "before_header": "running",
            "after_header": "running",
        },
    }
    if teardown.empty or module.check_mode:
        return result
    result["restore_point"] = record(module.params["run"], teardown).save(module.params["restore_folder"])
    back = stop_all(teardown)
    if back:
        module.fail_json(
            msg=f"Stopped, but running again: {', '.join(back)}. Something on this host starts it: stop that as well (spark_stop).",
            **result,
        )
    return result


def _restore(module: AnsibleModule) -> dict[str, Any]:
    path = f"{module.params['restore_folder']}/{module.params['run']}.json"
    point = RestorePoint.load(path) if module.params["state"] == "restored" and os.path.exists(path) else None
    ours = [f"unit {unit.name}" for unit in units(MANAGED_UNITS) if unit.exists]
    ours += [f"container {container.name}" for container in containers() if container.managed]
    names = [entry["name"] for entry in (*point.units, *point.containers)] if point else []
    result: dict[str, Any] = {"changed": bool(ours or point), "removed": ours, "restored": names}
    if module.check_mode:
        return result
    result["removed"] = remove_deployment()
    if point:
        result["restored"], problems = bring_back(point)
        if problems:
            module.fail_json(
                msg=f"Not everything that ran before runs again: {'; '.join(problems)}. The record is {path} on this host.",
                **result,
            )
    return result


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["stopped", "restored", "absent"], "default": "stopped"},
            "stop": {"type": "dict", "default": {}},
            "keep": {"type": "dict", "default": {}},
            "stop_unlisted": {"type": "list", "elements": "str", "default": []},
            "run": {"type": "str", "required": True},
            "restore_folder": {"type": "path", "default": RESTORE_FOLDER},
        },
        supports_check_mode=True,
    )
    try:
        result = _stop(module) if module.params["state"] == "stopped" else _restore(module)
    except WorkloadError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
