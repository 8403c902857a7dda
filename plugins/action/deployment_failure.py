# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.dgxspark.serving.plugins.plugin_utils._run_log import RunLog


class ActionModule(ActionBase):
    """Ends a failed run with one message: at which gate, why, and what runs now. Runs on the control node only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("run", "head", "rollback", "restore_seconds"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        hostvars, hosts = variables["hostvars"], list(variables["groups"]["spark"])
        gates = RunLog(str(self._task.args["run"])).gates()
        gate = f"gate {gates[-1].number} ({gates[-1].title})" if gates else "an unknown gate"
        lines = [f"The deployment failed at {gate}."]
        lines += self._reasons(hosts, hostvars)
        lines += self._diagnosis(hosts, hostvars)
        if not self._task.args.get("rollback", True):
            lines.append("spark_rollback is off: the hosts were left as they are.")
        else:
            seconds = int(self._task.args.get("restore_seconds") or 0)
            lines += [self._restored(host, hostvars[host].get("service_teardown_restored"), seconds) for host in hosts]
        return {"changed": False, "failed": True, "msg": "\n".join(lines), "gate": gates[-1].number if gates else ""}

    @staticmethod
    def _reasons(hosts: list[str], hostvars: Mapping[str, Any]) -> list[str]:
        """Each host's own reason once; a rank that ended because of another is not a reason."""
        found: list[str] = []
        for host in hosts:
            reason = str(hostvars[host].get("deploy_failure") or "").strip()
            if reason and "ended because of" not in reason.splitlines()[0] and reason not in found:
                found.append(reason)
        return found

    @staticmethod
    def _diagnosis(hosts: list[str], hostvars: Mapping[str, Any]) -> list[str]:
        """What the logs of all ranks say, and what was tried already."""
        for host in hosts:
            found = hostvars[host].get("vllm_serve_diagnosis")
            if isinstance(found, Mapping) and found.get("diagnosis"):
                tried = [f"tried already: {rung['why']}" for rung in hostvars[host].get("vllm_serve_rungs") or []]
                return ["Diagnosis: " + found["diagnosis"], *tried]
        return []

    @staticmethod
    def _restored(host: str, result: Mapping[str, Any] | None, restore_seconds: int) -> str:
        if result and result.get("unreachable"):
            return (
                f"{host}: does not answer. What ran before is brought back by the host itself, by dgxspark-restore.timer, "
                f"{restore_seconds} s after its last sign of this run."
            )
        if not result or "restored" not in result:
            return (
                f"{host}: nothing could be brought back: {(result or {}).get('msg', 'the rollback did not run here')}"
            )
        if result.get("failed"):
            return f"{host}: {result['msg']}"
        if not result["restored"]:
            return f"{host}: nothing had been stopped"
        ended = f" Was ended for good: {', '.join(result['ended'])}." if result.get("ended") else ""
        return f"{host}: runs again: {', '.join(result['restored'])}{ended}"
