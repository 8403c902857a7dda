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
  - Stops the units, containers and processes that the user named and an earlier deployment of this collection, after it has
    written a restore point on the host and armed the host's own way back. Brings back what a restore point recorded.
  - What is on the keep-list is never stopped. Lists that contradict each other are refused before anything is stopped.
  - A restart policy or an enabled unit is suspended, and set again by a restore. A unit that something starts again and again is
    made unable to start until then.
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
      - V(stopped) writes a restore point, arms the restore timer and stops. Refused while another run holds the host.
      - V(accepted) ends a run that was successful. It disarms the timer and notes O(deployment).
      - V(restored) removes the deployment of this collection and brings back what O(restore_point) says. It runs the host's own
        program, the same that the timer runs.
      - V(absent) removes the deployment of this collection and brings nothing back.
    type: str
    choices: [stopped, accepted, restored, absent]
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
  end_orphans:
    description:
      - End every engine process whose server is gone (C(VLLM::*), C(ray::*), C(sglang::*)), first with SIGTERM, then with SIGKILL.
      - Those of what is stopped, and those named in O(stop), are ended in any case.
    type: bool
    default: false
  run:
    description: Id of the run. It names the restore point and holds the host.
    type: str
    required: true
  restore_seconds:
    description:
      - The host restores itself when it has had no sign of the run for so many seconds, or after a reboot.
      - V(0) arms no timer. The host is then not held for the run either.
    type: int
    default: 300
  restore_point:
    description:
      - What to bring back, the id of a run, V(newest) or V(original) (what ran before the first deployment).
      - Empty means that of O(run). When that run has stopped nothing on this host, nothing is done.
    type: str
    default: ""
  wait_seconds:
    description: How long to wait until what was brought back runs and listens on its ports as before.
    type: int
    default: 900
  reason:
    description: Why it is brought back, for the host's record.
    type: str
    default: asked for
  deployment:
    description: What was accepted, for C(/var/lib/dgxspark/state/deployment.json).
    type: dict
  services:
    description:
      - With O(state=accepted), what holds from now on, as options of M(dgxspark.serving.host_services). It is brought before the way
        back is let go of.
    type: dict
  active_units:
    description: With O(state=accepted), units of this host that must be active. An answer may have been a rank's last.
    type: list
    elements: str
    default: []
  remove_secrets:
    description: With O(state=absent), remove also the keys of the API and of Ray.
    type: bool
    default: false
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

- name: Bring back what ran before the first deployment
  dgxspark.serving.service_teardown:
    state: restored
    run: "20261130T101500"
    restore_point: original
  become: true
"""

RETURN = r"""
stopped:
  description: What was stopped, or would be in check mode.
  returned: when O(state=stopped)
  type: list
  elements: str
  sample: [unit vllm-cluster.service, container reranker, "process 22001 (VLLM::EngineCore)"]
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
  description: What runs again and answers.
  returned: when O(state=restored)
  type: list
  elements: str
problems:
  description: What does not run as before, and why.
  returned: when O(state=restored)
  type: list
  elements: str
ended:
  description: Processes that were ended for the run and that nothing can bring back.
  returned: when O(state=restored)
  type: list
  elements: str
"""

import json
import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.dgxspark.serving.plugins.module_utils import _restore_program
from ansible_collections.dgxspark.serving.plugins.module_utils._bring_services import (
    BringError,
    bring_services,
    services_arguments,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._canary import STATE_FILE as CANARY_STATE
from ansible_collections.dgxspark.serving.plugins.module_utils._files import write_file
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import describe
from ansible_collections.dgxspark.serving.plugins.module_utils._host_program import (
    ProgramError,
    install_program,
    program_command,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._rank_snapshot import unit_states
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_lease import (
    LEASE_SECONDS,
    PROGRAM,
    arm,
    at_work,
    disarm,
    forget_outcome,
    read_lease,
    refuse_others,
    renew,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import (
    RESTORE_FOLDER,
    RUN_FILE,
    STATE_FILE,
    accepted_files,
    deployed_run,
    record,
    record_path,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._rollback import (
    ANSWERS_AGAIN_SECONDS,
    is_in_force,
    remove_deployment,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import Selection
from ansible_collections.dgxspark.serving.plugins.module_utils._teardown import Teardown, plan_teardown, stop_all
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    MANAGED_UNITS,
    WorkloadError,
    containers,
    units,
)


def _stopped(module: AnsibleModule) -> dict[str, Any]:
    options = module.params
    refuse_others(options["run"], options["restore_folder"])
    lists = Selection.parse(options["stop"]), Selection.parse(options["keep"])
    teardown = plan_teardown(*lists, options["stop_unlisted"], options["end_orphans"])
    result: dict[str, Any] = {
        "changed": not teardown.empty,
        "stopped": teardown.names,
        "kept": list(teardown.kept),
        "missing": list(teardown.missing),
        "restore_point": "",
        "diff": {
            "before": "".join(f"{name}\n" for name in (*teardown.names, *teardown.kept)),
            "after": "".join(f"{name}\n" for name in teardown.kept),
            "before_header": "running",
            "after_header": "running",
        },
    }
    if teardown.refusals:
        module.fail_json(msg=f"Nothing was stopped.\n{describe(teardown.refusals)}", **{**result, "changed": False})
    if not module.check_mode:
        with at_work(options["restore_folder"]):
            result["restore_point"] = _carry_out(module, teardown)
    return result


def _carry_out(module: AnsibleModule, teardown: Teardown) -> str:
    """The way back first. Returns the path of the restore point."""
    options = module.params
    path = "" if teardown.empty else record(options["run"], teardown).save(options["restore_folder"])
    if options["restore_seconds"]:
        install_program(PROGRAM, _restore_program)
        arm(options["run"], options["restore_seconds"], options["restore_folder"])
    left = stop_all(teardown)
    if any(unit.name in MANAGED_UNITS for unit in teardown.units):
        # The next deployment's containers carry the id of the run that makes them, and restart only when it is accepted; what its
        # predecessor's canary has seen says nothing about it.
        for old in (*accepted_files(), RUN_FILE, CANARY_STATE):
            if os.path.exists(old):
                os.unlink(old)
    if left:
        module.fail_json(
            msg=f"Stopped, but running again: {', '.join(left)}. Something on this host starts it: stop that as well (spark_stop).",
            stopped=teardown.names,
            restore_point=path,
        )
    return path


def _accepted(module: AnsibleModule) -> dict[str, Any]:
    options = module.params
    if module.check_mode:
        return {"changed": False}
    with at_work(options["restore_folder"]):
        if options["restore_seconds"]:
            renew(options["run"], options["restore_seconds"], options["restore_folder"])
        down = [state.described for state in unit_states(options["active_units"]) if state.active != "active"]
        if down:
            module.fail_json(
                msg=f"Not accepted, this rank does not run: {', '.join(down)}. See journalctl --unit={down[0].split()[0]}."
            )
        brought = _bring(module, options["services"]) if options["services"] else False
        changed = options["deployment"] is not None and _note(options["deployment"])
        disarm(options["restore_folder"])
        forget_outcome(options["restore_folder"])
    return {"changed": brought or changed}


def _bring(module: AnsibleModule, services: dict[str, Any]) -> bool:
    """The options are those of module host_services, and are checked as there."""
    checked = ArgumentSpecValidator(services_arguments()).validate(services)
    if checked.error_messages:
        module.fail_json(msg=f"services: {'; '.join(checked.error_messages)}")
    return bool(bring_services(checked.validated_parameters, module.check_mode)["changed"])


def _note(deployment: dict[str, Any]) -> bool:
    """Whether the note was another one."""
    content = (json.dumps(deployment, indent=2, sort_keys=True) + "\n").encode()
    if os.path.exists(STATE_FILE):
        with open(STATE_FILE, "rb") as handle:
            if handle.read() == content:
                return False
    os.makedirs(os.path.dirname(STATE_FILE), mode=0o700, exist_ok=True)
    write_file(STATE_FILE, content, 0o600)
    return True


def _restored(module: AnsibleModule) -> dict[str, Any]:
    options, folder = module.params, module.params["restore_folder"]
    name = options["restore_point"] or options["run"]
    nothing: dict[str, Any] = {"changed": False, "removed": [], "restored": [], "problems": [], "ended": []}
    lease = read_lease(folder)
    # Accepted here, but not on another host: the lease is given back, and the run may have had nothing to record.
    held = (lease is not None and lease.run == name) or deployed_run() == name
    if not options["restore_point"] and not held and not os.path.exists(record_path(name, folder)):
        return nothing
    if module.check_mode:
        point = _restore_program.point_named(name, folder)
        if point is None:
            return {**nothing, "changed": True, "removed": _ours()}
        in_force = is_in_force(point)
        return {**nothing, "changed": not in_force, "removed": [] if in_force else _ours(), "restored": point.names}
    install_program(PROGRAM, _restore_program)
    words = ["--folder", folder, "restore", name, "--reason", options["reason"]]
    words += ["--wait-seconds", str(options["wait_seconds"])]
    _returncode, output, complaints = module.run_command([*program_command(PROGRAM), *words])
    if not output:
        module.fail_json(msg=f"The restore did not work: {complaints.strip()}", **nothing)
    outcome = json.loads(output)
    result = {key: outcome[key] for key in ("removed", "restored", "problems", "ended")}
    result["changed"] = bool(outcome["removed"] or outcome["changed"])
    if outcome["problems"]:
        module.fail_json(
            msg=f"Not everything that ran before runs again: {'; '.join(outcome['problems'])}. "
            f"The record is {record_path(outcome['run'], folder)} on this host.",
            **result,
        )
    return result


def _ours() -> list[str]:
    found = [f"unit {unit.name}" for unit in units(MANAGED_UNITS) if unit.exists]
    return found + [f"container {container.name}" for container in containers() if container.managed]


def _absent(module: AnsibleModule) -> dict[str, Any]:
    ours = _ours()
    if module.check_mode:
        return {"changed": bool(ours), "removed": ours}
    with at_work(module.params["restore_folder"]):
        removed = remove_deployment(module.params["remove_secrets"])
        disarm(module.params["restore_folder"])
    return {"changed": bool(removed), "removed": removed}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["stopped", "accepted", "restored", "absent"], "default": "stopped"},
            "stop": {"type": "dict", "default": {}},
            "keep": {"type": "dict", "default": {}},
            "stop_unlisted": {"type": "list", "elements": "str", "default": []},
            "end_orphans": {"type": "bool", "default": False},
            "run": {"type": "str", "required": True},
            "restore_seconds": {"type": "int", "default": LEASE_SECONDS},
            "restore_point": {"type": "str", "default": ""},
            "wait_seconds": {"type": "int", "default": ANSWERS_AGAIN_SECONDS},
            "reason": {"type": "str", "default": "asked for"},
            "deployment": {"type": "dict"},
            "services": {"type": "dict"},
            "active_units": {"type": "list", "elements": "str", "default": []},
            "remove_secrets": {"type": "bool", "default": False, "no_log": False},
            "restore_folder": {"type": "path", "default": RESTORE_FOLDER},
        },
        supports_check_mode=True,
    )
    work = {"stopped": _stopped, "accepted": _accepted, "restored": _restored, "absent": _absent}
    try:
        result = work[module.params["state"]](module)
    except (BringError, WorkloadError, ProgramError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
