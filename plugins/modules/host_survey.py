#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_survey
short_description: What a host is, what runs on it, who listens on a port
version_added: 0.1.0
description:
  - Looks at Python, Docker, systemd, kernel, containers, units, listening ports and free disk in one call.
  - With O(plan) it also says what the plan needs and this host lacks. All hosts of the plan must then run it at the same time,
    because they try the connections between each other; it waits up to four seconds for those that do not answer.
  - Needs no library on the host. It is the first task of a deployment and so also the proof that the host can be reached and
    that become works.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
  - dgxspark.serving.attributes.actiongroup_spark
  - dgxspark.serving.findings
options:
  ports:
    description: TCP ports whose listeners are wanted.
    type: list
    elements: int
    default: []
  paths:
    description: Name to path. The file system that holds each path, or would hold it, is measured.
    type: dict
    default: {}
  units:
    description: Systemd units to look at. Those that do not exist are left out of the answer.
    type: list
    elements: str
    default: []
  plan:
    description: The plan of this host, as M(dgxspark.serving.deployment_plan) returns it. It adds ports, paths and units.
    type: dict
  gpu_arguments:
    description: How the engine's container will be given the GPU, as arguments of C(docker run). Empty if it needs none.
    type: list
    elements: str
    default: []
  devices:
    description: Device files that the engine's container will get.
    type: list
    elements: str
    default: []
  ulimits:
    description: Limits of the engine's container.
    type: list
    elements: str
    default: []
  brief:
    description:
      - Whether only the system (Python, kernel, systemd, libraries), the Docker Engine and earlyoom are looked at, and no container,
        other unit, port or disk.
    type: bool
    default: false
  also:
    description:
      - Further looks in the same call, which costs less than calls of their own.
      - V(memory) adds what M(dgxspark.serving.gpu_memory_check) returns, V(fabric) what M(dgxspark.serving.nccl_ib_check) returns.
        V(fabric) needs O(plan), whose rails and other hosts it expects.
    type: list
    elements: str
    choices: [memory, fabric]
    default: []
  nvidia_smi:
    description: The nvidia-smi to ask for V(memory) of O(also), a path or a name.
    type: str
    default: nvidia-smi
  library_folder:
    description: Folder of the Python libraries that role P(dgxspark.serving.host_setup#role) brings.
    type: path
    default: /opt/dgxspark/python
seealso:
  - module: dgxspark.serving.gpu_memory_check
  - module: dgxspark.serving.nccl_ib_check
"""

EXAMPLES = r"""
- name: Who listens on port 8000, and how much room do images have?
  dgxspark.serving.host_survey:
    ports: [8000]
  become: true
  register: survey

- name: Does each host have what the plan needs?
  dgxspark.serving.host_survey:
    plan: "{{ plan_result }}"
    gpu_arguments: ["--gpus", "all"]
    devices: [/dev/infiniband]
    ulimits: ["memlock=-1"]
    also: [memory, fabric]
  become: true
  register: survey
"""

RETURN = r"""
survey:
  description: What was found. With O(brief) it ends after C(firewall_lets_in).
  returned: always
  type: dict
  contains:
    architecture: {description: Machine as C(uname -m) prints it., type: str, returned: always, sample: aarch64}
    hostname: {description: Name of the host., type: str, returned: always, sample: spark-1a32}
    kernel: {description: Release of the kernel., type: str, returned: always, sample: 6.17.0-1032-nvidia}
    command_line: {description: Command line of the kernel., type: str, returned: always}
    operating_system: {description: Name of the distribution., type: str, returned: always, sample: Ubuntu 24.04.3 LTS}
    clock: {description: The host's time in seconds since 1970., type: float, returned: always}
    python: {description: Version of the Python that ran the module., type: str, returned: always, sample: 3.12.3}
    library_digest: {description: Digest of the libraries of role host_setup or empty., type: str, returned: always, sample: 3f6c1a}
    docker:
      description: Version, root folder, storage driver and runtimes of the engine. Empty when it does not answer.
      type: dict
      returned: always
    earlyoom:
      description:
        - Whether earlyoom runs (C(active)), whether it must still be told to choose the engine and leave the host alone (C(to_steer)) or
          to choose as before (C(to_release)), and the text (C(drop_in)) that does it in C(path). Empty where it is not installed.
      type: dict
      returned: always
    firewall_lets_in:
      description: Addresses of the fabric that the firewall of a deployment on this host lets in. Null where there is none.
      type: list
      elements: str
      returned: always
    containers: {description: All containers with id and start time., type: list, elements: dict, returned: always}
    teardown:
      description: What gate 5 would stop (C(stop), C(processes) with pids) and keep (C(keep)), and what of the list is not here
        (C(missing)).
      type: dict
      returned: with O(plan), if Docker answers
    units: {description: The units asked for that exist., type: list, elements: dict, returned: always}
    unit_containers:
      description: Name of a container to the unit whose ExecStart runs it.
      type: dict
      returned: always
      sample: {glm: vllm-cluster.service}
    listeners: {description: Listeners on the ports asked for and whom they belong to., type: list, elements: dict, returned: always}
    learned: {description: What the ladder has learned on this host. Empty where nothing was., type: dict, returned: always}
    probed: {description: What registry_probe found at last in the images of the plan that the head has., type: dict, returned: always}
    remembered: {description: Digest and id of the images that earlier runs have chosen., type: dict, returned: always}
    disks: {description: Free and total GiB by name., type: dict, returned: always}
    images:
      description: Id, size and digests (in registries) of the plan's images that the engine has, by their names on the hosts.
      type: dict
      returned: always
    model:
      description:
        - Where the model is or should be (C(folder)), what a container must see of the host for it (C(mount)), whether it is
          C(complete), and what is wrong with the planned folder (C(problem)). A complete snapshot in a cache of the hub counts.
      type: dict
      returned: with O(plan), on the head
    cdi: {description: Files that describe NVIDIA devices to container engines., type: list, elements: str, returned: with O(plan)}
    firewalls:
      description: What refuses packets on this host, as far as it may be read.
      type: dict
      returned: if the plan has several hosts
    probe:
      description: Outcome of each connection to the other hosts (V(open), V(no_answer), V(refused), V(unreachable)), who reached
        this host, and the difference of the clocks in seconds.
      type: dict
      returned: if the plan has several hosts
    unseen: {description: What could not be seen for lack of rights., type: list, elements: str, returned: always}
memory:
  description: Available GiB and so on, with all other results of M(dgxspark.serving.gpu_memory_check) beside it.
  returned: if O(also) has V(memory)
  type: dict
env:
  description: Environment for NCCL, with all other results of M(dgxspark.serving.nccl_ib_check) beside it.
  returned: if O(also) has V(fabric)
  type: dict
findings:
  description: What is wrong, worst first.
  returned: always
  type: list
  elements: dict
"""

from dataclasses import replace
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._check_module import finish
from ansible_collections.dgxspark.serving.plugins.module_utils._fabric_check import (
    check_fabric,
    fabric_arguments,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import (
    ERROR,
    Finding,
    findings_argument_spec,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._host_needs import Needs, needs_of
from ansible_collections.dgxspark.serving.plugins.module_utils._host_python import HOST_LIBRARY_FOLDER
from ansible_collections.dgxspark.serving.plugins.module_utils._host_runtime import ContainerWishes
from ansible_collections.dgxspark.serving.plugins.module_utils._host_survey import survey_host
from ansible_collections.dgxspark.serving.plugins.module_utils._log_input import CannotLook
from ansible_collections.dgxspark.serving.plugins.module_utils._memory_check import (
    MemoryCheck,
    MemoryCheckError,
    memory_arguments,
)


def needs_from(params: dict[str, Any]) -> Needs:
    """The plan's needs with what was asked for by name."""
    planned = needs_of(params["plan"]) if params["plan"] else Needs()
    return replace(
        planned,
        ports=(*planned.ports, *params["ports"]),
        paths={**planned.paths, **params["paths"]},
        units=(*planned.units, *params["units"]),
    )


def _defaults(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: option.get("default") for name, option in spec.items()}


def _memory(params: dict[str, Any]) -> dict[str, Any]:
    return MemoryCheck({**_defaults(memory_arguments()), "nvidia_smi": params["nvidia_smi"]}).run()


def _fabric(params: dict[str, Any]) -> dict[str, Any]:
    own = params["plan"]["host"]
    others = [host for host in params["plan"]["hosts"] if host["name"] != own["name"]]
    if not others:
        # A single host has no fabric.
        return {"findings": []}
    peers = [address for host in others for address in host["fabric_addresses"]]
    expected = {"expect_rails": len(own["fabric_addresses"]), "peers": peers}
    return check_fabric({**_defaults(fabric_arguments()), **expected})


LOOKS = {"memory": _memory, "fabric": _fabric}


def look_further(params: dict[str, Any]) -> tuple[dict[str, Any], list[Finding]]:
    """The results of the looks in O(also); one that cannot be made is a finding, so that the others are not lost."""
    results: dict[str, Any] = {}
    findings: list[Finding] = []
    for name in params["also"]:
        try:
            found = LOOKS[name](params)
        except (MemoryCheckError, CannotLook) as error:
            findings.append(Finding("HOST.CHECK_FAILED", ERROR, "host", f"A check could not be made: {error}"))
            continue
        findings += found.pop("findings")
        results.update({key: value for key, value in found.items() if key not in ("msg", "changed")})
    return results, findings


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "ports": {"type": "list", "elements": "int", "default": []},
            "paths": {"type": "dict", "default": {}},
            "units": {"type": "list", "elements": "str", "default": []},
            "plan": {"type": "dict"},
            "gpu_arguments": {"type": "list", "elements": "str", "default": []},
            "devices": {"type": "list", "elements": "str", "default": []},
            "ulimits": {"type": "list", "elements": "str", "default": []},
            "also": {"type": "list", "elements": "str", "choices": list(LOOKS), "default": []},
            "nvidia_smi": {"type": "str", "default": "nvidia-smi"},
            "brief": {"type": "bool", "default": False},
            "library_folder": {"type": "path", "default": HOST_LIBRARY_FOLDER},
            **findings_argument_spec(),
        },
        supports_check_mode=True,
    )
    params = module.params
    if "fabric" in params["also"] and not params["plan"]:
        module.fail_json(msg="also has fabric, which needs plan: it says which rails and hosts are expected.")
    wishes = ContainerWishes(params["gpu_arguments"], params["devices"], params["ulimits"]) if params["plan"] else None
    survey = survey_host("host", needs_from(params), params["library_folder"], wishes, brief=params["brief"])
    further, findings = look_further(params)
    finish(module, [*survey.findings, *findings], changed=False, survey=survey.facts, **further)


if __name__ == "__main__":
    main()
