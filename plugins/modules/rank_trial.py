#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_trial
short_description: Try the serving image on this host and the all-reduce between all hosts
version_added: 0.2.0
description:
  - Starts a short-lived container of the serving image with the flags and the environment of the deployment. In it, a CUDA context
    is made, a small matrix product computed, the parsers are imported (rank 0), and an all-reduce runs between all ranks.
  - The log of NCCL is judged as by M(dgxspark.serving.nccl_ib_check).
  - Must run on all hosts of the deployment at the same time.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.findings
attributes:
  check_mode:
    support: partial
    details:
      - Nothing is evaluated in check mode.
  diff_mode:
    support: none
options:
  image_id:
    description: Id of the serving image on this host.
    type: str
    required: true
  rank:
    description: Rank of this host, V(0) is the head.
    type: int
    required: true
  world_size:
    description: How many ranks take part, one per host.
    type: int
    required: true
  master:
    description: C(ADDRESS:PORT) on which rank 0 waits for the others.
    type: str
    required: true
  backend:
    description:
      - V(nccl) proves the transport. V(gloo) runs on CPUs and proves nothing; the verdict is then V(unknown).
    type: str
    choices: [nccl, gloo]
    default: nccl
  data_type:
    description: Data type of the weights, for the matrix product.
    type: str
    choices: [bf16, fp8]
    default: bf16
  reasoning_parser:
    description: Name of a reasoning parser of the engine.
    type: str
    default: ""
  tool_call_parser:
    description: Name of a parser of tool calls of the engine.
    type: str
    default: ""
  docker_arguments:
    description: Arguments of C(docker run) that the engine's container gets.
    type: list
    elements: str
    default: []
  environment:
    description: Environment of the rank, one C(NAME=value) per line.
    type: str
    default: ""
  allow_tcp:
    description: Whether NCCL over TCP is a warning instead of an error.
    type: bool
    default: false
  run:
    description: Id of the run.
    type: str
    required: true
  restore_seconds:
    description: A sign of the run for the host's restore timer, when the teardown was before. V(0) gives none.
    type: int
    default: 0
seealso:
  - module: dgxspark.serving.nccl_ib_check
"""

EXAMPLES = r"""
- name: Try the image on all hosts
  dgxspark.serving.rank_trial:
    image_id: sha256:30de9b5062c5
    rank: "{{ 0 if inventory_hostname == 'spark-1' else 1 }}"
    world_size: 2
    master: 192.168.177.11:20112
    docker_arguments: ["--gpus", "all", "--device", "/dev/infiniband", "--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1"]
    run: "20261130T101500"
  become: true
"""

RETURN = r"""
steps: {description: What the program in the image said by step., returned: always, type: dict}
bus_gbps: {description: Bus bandwidth of the all-reduce in Gbit/s. 0 where none ran., returned: always, type: float}
transport: {description: As of M(dgxspark.serving.nccl_ib_check)., returned: always, type: dict}
seconds: {description: How long the program ran., returned: always, type: float}
log: {description: What NCCL and the engine have printed., returned: always, type: str}
findings: {description: What is wrong., returned: always, type: list, elements: dict}
"""

import os
import tempfile
import time
from dataclasses import replace
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._check_module import finish
from ansible_collections.dgxspark.serving.plugins.module_utils._fabric_verdict import select_rails
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import (
    WARNING,
    Finding,
    findings_argument_spec,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._nccl_log import parse_logs
from ansible_collections.dgxspark.serving.plugins.module_utils._nccl_verdict import (
    Surroundings,
    judge_logs,
    transport_result,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._rdma_sysfs import kernel_addresses, read_fabric
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_lease import renew
from ansible_collections.dgxspark.serving.plugins.module_utils._trial import (
    LIMIT_SECONDS,
    Trial,
    TrialResult,
    judge_trial,
    run_trial,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import WorkloadError

# Findings of nccl_ib_check that say TCP; a user who allows TCP is warned only.
_TCP = ("NCCL.SOCKET_USED", "NCCL.NO_DEVICE_IN_CONTAINER", "NCCL.HCA_MATCHES_NOTHING")


def _transport(trial: Trial, result: TrialResult, allow_tcp: bool) -> tuple[dict[str, Any], list[Finding]]:
    ranks = parse_logs([result.log])
    if trial.backend != "nccl" or trial.world_size < 2:
        return transport_result(ranks), []
    fabric = read_fabric("/sys", kernel_addresses())
    _looked_at, rails, _findings = select_rails(fabric, [], [])
    findings = [
        replace(finding, severity=WARNING) if allow_tcp and finding.id in _TCP else finding
        for finding in judge_logs(ranks, Surroundings(fabric, rails))
        # Each rank has its own log.
        if finding.id != "NCCL.RANKS_MISSING"
    ]
    return transport_result(ranks), findings


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image_id": {"type": "str", "required": True},
            "rank": {"type": "int", "required": True},
            "world_size": {"type": "int", "required": True},
            "master": {"type": "str", "required": True},
            "backend": {"type": "str", "choices": ["nccl", "gloo"], "default": "nccl"},
            "data_type": {"type": "str", "choices": ["bf16", "fp8"], "default": "bf16"},
            "reasoning_parser": {"type": "str", "default": ""},
            "tool_call_parser": {"type": "str", "default": ""},
            "docker_arguments": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "str", "default": ""},
            "allow_tcp": {"type": "bool", "default": False},
            "run": {"type": "str", "required": True},
            "restore_seconds": {"type": "int", "default": 0},
            **findings_argument_spec(),
        },
        supports_check_mode=True,
    )
    options = module.params
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="Not evaluated in check mode.")
    try:
        if options["restore_seconds"]:
            renew(options["run"], options["restore_seconds"] + LIMIT_SECONDS)
    except WorkloadError as error:
        module.fail_json(msg=str(error))
    with tempfile.NamedTemporaryFile("w", dir=module.tmpdir, encoding="utf-8") as environment:
        environment.write(options["environment"])
        environment.flush()
        os.chmod(environment.name, 0o600)
        names = ("image_id", "rank", "world_size", "master", "backend", "data_type", "run")
        trial = Trial(
            **{name: options[name] for name in names},
            environment_file=environment.name,
            reasoning_parser=options["reasoning_parser"],
            tool_call_parser=options["tool_call_parser"],
            docker_arguments=options["docker_arguments"],
        )
        began = time.monotonic()
        result = run_trial(trial)
        seconds = round(time.monotonic() - began, 1)
    transport, findings = _transport(trial, result, options["allow_tcp"])
    finish(
        module,
        [*judge_trial(trial, result), *findings],
        changed=False,
        steps=result.steps,
        bus_gbps=result.bus_gbps,
        transport=transport,
        seconds=seconds,
        log=result.log,
    )


if __name__ == "__main__":
    main()
