#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_log_check
short_description: Say why an engine did not come up
version_added: 0.1.0
description:
  - Reads the logs of vLLM or SGLang, of Ray and of the hosts, of all ranks and in any order, and names one cause with its evidence
    and the way out. What only followed from the cause is never taken for it.
  - Says what to change before the next start after a memory failure (RV(ladder)), and whether another image or engine may do
    better (RV(next_candidate)).
  - Host and rank are read from the lines. Outputs of C(ray status), C(ray list nodes), C(docker inspect), C(systemctl show), C(df),
    C(ss) and C(pip list) are understood when they are given as logs, too.
  - Of several starts in one log only the last one counts. An engine that was stopped on purpose, or that serves, has no cause.
  - Keys and tokens are taken out of what is shown.
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
  - dgxspark.serving.attributes.actiongroup_spark
  - dgxspark.serving.findings
options:
  log:
    description: Logs of engine, Ray and host journal, a text or a list of texts. One text can hold several ranks.
    type: raw
  log_path:
    description: Files on the host with logs. Only the last 32 MiB of a file are read.
    type: list
    elements: path
    default: []
  plan:
    description:
      - What was asked for. The logs alone suffice; this only sharpens the answer.
      - All keys of a plan of this collection are understood, of which C(hosts), C(engine), C(memory), C(model) and C(api) are used.
      - C(utilization), C(max_model_len), C(max_num_seqs), C(max_num_batched_tokens), C(cudagraph_capture_sizes) and
        C(enforce_eager) are the values of this start. Those that the log says are known without.
      - C(taken) are the names of the rungs that were tried already, C(asked) the values before the first of them.
      - C(min_context) is the shortest context that is acceptable, C(min_num_batched_tokens) the size of the model's block,
        C(total_gib) the memory of a host.
      - C(stalled_seconds) says that nothing has moved for so long. A log that just ends is then a hang.
    type: dict
    default: {}
author:
  - dgxspark.serving contributors (@dgxspark)
seealso:
  - module: dgxspark.serving.gpu_memory_check
  - module: dgxspark.serving.nccl_ib_check
  - module: dgxspark.serving.registry_probe
"""

EXAMPLES = r"""
- name: Read the journal of the engine
  ansible.builtin.command: journalctl --all --no-pager --output=short-iso --unit=dgxspark-vllm --since=-1h
  register: journal
  changed_when: false

- name: Say why the engine did not come up
  dgxspark.serving.engine_log_check:
    log: "{{ journal.stdout }}"
  register: why

- name: Look at the logs of both ranks and of the kernel, and fail with the reason
  dgxspark.serving.engine_log_check:
    log_path:
      - /var/log/vllm/head.log
      - /var/log/vllm/worker.log
      - /var/log/kern.log
    plan:
      utilization: 0.8
      min_context: 32768
    fail_on: [error]
"""

RETURN = r"""
msg:
  description: A summary for a terminal.
  returned: always
  type: str
  sample: |-
    error: engine: The KV cache is 0.75 GiB too small for one request of 196608 tokens. [ENGINE.KV_CACHE_TOO_SMALL]
      -> Set max_model_len to at most 190272.
    next: max_model_len 196608 to 190272: the longest that fits, as the engine says
cause:
  description: Why the engine did not come up. V(null) if the logs show no failure.
  returned: always
  type: dict
  contains:
    id:
      description: What went wrong, the id of the first finding.
      type: str
      sample: ENGINE.KV_CACHE_TOO_SMALL
    rank:
      description: The rank that failed first. V(null) if the lines do not say.
      type: int
      sample: 1
    host:
      description: Name or address of its host. V(null) if the lines do not say.
      type: str
      sample: spark-b
    phase:
      description: How far the start had come - V(config), V(load), V(profile), V(kv_cache), V(graph_capture), V(join) or V(serve).
      type: str
      sample: kv_cache
    numbers:
      description: The numbers that the lines tell, and those that follow from them.
      type: dict
      sample: {"available_gib": 22.5, "feasible_max_model_len": 190272, "max_model_len": 196608, "needed_gib": 23.25, "short_gib": 0.75}
    confidence:
      description: V(certain) if a line names the cause, V(likely) if it follows from what the lines say, V(unknown) for a failure
        that is not known, whose first traceback is shown.
      type: str
      sample: certain
ladder:
  description: What to change before the next start. V(null) if no change of the engine's values helps, or all have been tried.
  returned: always
  type: dict
  contains:
    rung:
      description: Number of the rung, from 1.
      type: int
      sample: 1
    name:
      description: Name of the rung, for O(plan) of the next call (key C(taken)).
      type: str
      sample: context
    changes:
      description: Values to change, under the names of a preset's C(engine).
      type: dict
      sample: {"max_model_len": 190272}
    arguments:
      description: The same as arguments of C(vllm serve).
      type: list
      elements: str
      sample: ["--max-model-len", "190272"]
    why:
      description: One line that says why.
      type: str
      sample: "max_model_len 196608 to 190272: the longest that fits, as the engine says"
next_candidate:
  description: Whether another image or engine may do better.
  returned: always
  type: bool
  sample: false
findings:
  description: What the check has to say, the cause first.
  returned: always
  type: list
  elements: dict
  sample:
    - id: ENGINE.KV_CACHE_TOO_SMALL
      severity: error
      subject: engine
      message: The KV cache is 0.75 GiB too small for one request of 196608 tokens.
      remedy: Set max_model_len to at most 190272.
      evidence: "ValueError: To serve at least one request with the model's max seq len (196608), ..."
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._check_module import finish
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_verdict import Diagnosis, diagnose
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import describe, findings_argument_spec
from ansible_collections.dgxspark.serving.plugins.module_utils._ladder import as_arguments
from ansible_collections.dgxspark.serving.plugins.module_utils._log_input import CannotLook, log_arguments, read_logs

# A start logs a few MiB even with NCCL_DEBUG=INFO; what is before belongs to older starts.
MOST_BYTES = 32 * 1024**2


def summary(diagnosis: Diagnosis) -> str:
    lines = [] if diagnosis.cause else ["No failure in the logs."]
    lines.append(describe(diagnosis.findings))
    if diagnosis.rung:
        lines.append(f"next: {diagnosis.rung.why}")
    if diagnosis.next_candidate:
        lines.append("next: another image or engine may do better")
    return "\n".join(line for line in lines if line)


def check(params: dict[str, Any]) -> dict[str, Any]:
    """The results of the module, with the findings as they are."""
    logs = read_logs(params["log"], params["log_path"], MOST_BYTES)
    try:
        diagnosis = diagnose(logs, params["plan"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CannotLook(f"plan: it is not what the documentation says: {type(error).__name__}: {error}") from error
    rung = diagnosis.rung
    return {
        "cause": diagnosis.cause.as_dict() if diagnosis.cause else None,
        "ladder": {**rung.as_dict(), "arguments": as_arguments(rung.changes)} if rung else None,
        "next_candidate": diagnosis.next_candidate,
        "findings": diagnosis.findings,
        "msg": summary(diagnosis),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **log_arguments(),
            "plan": {"type": "dict", "default": {}},
            **findings_argument_spec(),
        },
        supports_check_mode=True,
    )
    try:
        results = check(module.params)
    except CannotLook as error:
        module.fail_json(msg=str(error))
    finish(module, changed=False, **results)


if __name__ == "__main__":
    main()
