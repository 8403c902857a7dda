# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.module_utils._summary import summary
from ansible_collections.dgxspark.serving.plugins.plugin_utils._run_log import RunLog

display = Display()

# What a run waits for, and which registered results say for how long: the start of units belongs to the wait for them.
WAITS = {
    "memory": (("service_teardown_memory", "waited_seconds"),),
    "Ray": (("ray_cluster_started", "start_seconds"), ("ray_cluster_wait", "seconds")),
    "trial": (("ray_cluster_trial", "seconds"),),
    "engine": (("vllm_serve_started", "start_seconds"), ("vllm_serve_wait", "seconds")),
}


class ActionModule(ActionBase):
    """Prints the summary of a run. Runs on the control node only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("plan", "choice", "run", "converged"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        log = RunLog(str(self._task.args["run"]))
        gates = log.seconds_per_gate(time.time())
        hostvars = (task_vars or {})["hostvars"]
        plan = self._task.args["plan"]
        head = hostvars[plan["head"]]
        values = {
            "plan": plan,
            "choice": self._task.args.get("choice") or {},
            "converged": self._task.args["converged"],
            "hosts": [self._host(host["name"], hostvars[host["name"]]) for host in plan["hosts"]],
            "rungs": list(head.get("vllm_serve_rungs") or []),
            "trial": [self._ran(hostvars[host["name"]], "ray_cluster_trial") or {} for host in plan["hosts"]],
            "trial_backend": str((task_vars or {}).get("nccl_proof_backend") or "nccl"),
            "ray": self._ran(head, "ray_cluster_wait"),
            "acceptance": self._ran(head, "vllm_serve_acceptance"),
            "waits": self._waits([hostvars[host["name"]] for host in plan["hosts"]]),
            "check_mode": self._task.check_mode,
            "gates": [(gate.number, gate.title, seconds) for gate, seconds in gates],
        }
        text = summary(values)
        display.display(text, color="green")
        figures = {
            "gates": [{"number": gate.number, "title": gate.title, "seconds": seconds} for gate, seconds in gates],
            "waits": values["waits"],
        }
        log.finish(figures)
        return {"changed": False, "summary": text.splitlines(), **figures}

    def _waits(self, hosts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Seconds in which the run waited for what is not its own work; hosts wait side by side."""
        found = {}
        for what, results in WAITS.items():
            seconds = 0.0
            for name, field in results:
                seconds += max(float((self._ran(own, name) or {}).get(field) or 0.0) for own in hosts)
            if seconds:
                found[what] = round(seconds, 1)
        return found

    @staticmethod
    def _ran(own: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
        """A registered result, or None when its task was skipped."""
        result = own.get(name)
        return result if isinstance(result, Mapping) and not result.get("skipped") else None

    def _host(self, name: str, own: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": name,
            "teardown": self._ran(own, "service_teardown_result"),
            "memory_before": self._ran(own, "preflight_survey"),
            "memory_after": self._ran(own, "service_teardown_memory"),
        }
