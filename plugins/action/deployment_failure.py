# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.plugin_utils._run_log import RunLog

display = Display()

# Mostly a slip in the user's arguments: to pull all other images for it would cost hours.
_SAME_WITH_EVERY_IMAGE = ("ENGINE.ARGUMENT_REFUSED",)


class ActionModule(ActionBase):
    """Ends a failed run with one message: at which gate, why, and what runs now. Runs on the control node only.

    It does not end where another candidate may serve and every host is as it was before.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("run", "head", "rollback", "restore_seconds", "choice", "tried"))

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
        goes_on = self._goes_on(hosts, hostvars)
        choice, tried = self._task.args.get("choice") or {}, dict(self._task.args.get("tried") or {})
        if goes_on:
            tried[choice["image"]] = self._cause(hosts, hostvars)
            display.display(
                "\n".join([*lines, f"Another image may serve: {', '.join(choice['others'])}."]), color="red"
            )
        return {
            "changed": False,
            "failed": not goes_on,
            "msg": "\n".join(lines),
            "gate": gates[-1].number if gates else "",
            "goes_on": goes_on,
            "tried": tried,
        }

    def _goes_on(self, hosts: list[str], hostvars: Mapping[str, Any]) -> bool:
        arguments = self._task.args
        if not (arguments.get("choice") or {}).get("others") or not arguments.get("rollback", True):
            return False
        results = [hostvars[host].get("service_teardown_restored") or {} for host in hosts]
        as_before = all(
            "restored" in result and not result.get("failed") and not result.get("unreachable") for result in results
        )
        verdict = self._verdict(hosts, hostvars)
        users_own = (verdict.get("cause") or {}).get("id") in _SAME_WITH_EVERY_IMAGE
        return as_before and bool(verdict.get("next_candidate")) and not users_own

    @staticmethod
    def _verdict(hosts: list[str], hostvars: Mapping[str, Any]) -> Mapping[str, Any]:
        """What engine_diagnosis said, or nothing."""
        for host in hosts:
            found = hostvars[host].get("vllm_serve_diagnosis")
            if isinstance(found, Mapping) and found.get("diagnosis"):
                return found
        return {}

    def _cause(self, hosts: list[str], hostvars: Mapping[str, Any]) -> str:
        return str(self._verdict(hosts, hostvars)["diagnosis"]).splitlines()[0].rstrip(".")

    @staticmethod
    def _reasons(hosts: list[str], hostvars: Mapping[str, Any]) -> list[str]:
        """Each host's own reason once; a rank that ended because of another is not a reason."""
        found: list[str] = []
        for host in hosts:
            reason = str(hostvars[host].get("deploy_failure") or "").strip()
            if reason and "ended because of" not in reason.splitlines()[0] and reason not in found:
                found.append(reason)
        return found

    def _diagnosis(self, hosts: list[str], hostvars: Mapping[str, Any]) -> list[str]:
        """What the logs of all ranks say, and what was tried already."""
        found = self._verdict(hosts, hostvars)
        if not found:
            return []
        rungs: list[Mapping[str, Any]] = next(
            (hostvars[host]["vllm_serve_rungs"] for host in hosts if hostvars[host].get("vllm_serve_rungs")), []
        )
        return ["Diagnosis: " + found["diagnosis"], *(f"tried already: {rung['why']}" for rung in rungs)]

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
