# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_command import SGLANG
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_verdict import Diagnosis, diagnose
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import describe
from ansible_collections.dgxspark.serving.plugins.module_utils._ladder import (
    EngineSettings,
    Rung,
    learned_key,
    remembered,
)

display = Display()


class ActionModule(ActionBase):
    """Why the engine did not come up, from the logs of all ranks, and what to change. Runs on the control node only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("logs", "plan", "image_id", "known", "changes", "rungs", "climb", "waits"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables, arguments = task_vars or {}, self._task.args
        plan: Mapping[str, Any] = arguments["plan"]
        taken: list[Mapping[str, Any]] = list(arguments.get("rungs") or [])
        changes = dict(arguments.get("changes") or {})
        diagnosis = diagnose(
            self._texts(variables, str(arguments["logs"])),
            {
                **plan,
                "engine": {**plan["engine"], **changes},
                "asked": plan["engine"],
                "taken": [rung["name"] for rung in taken],
                "stalled_seconds": self._stalled_seconds(variables, str(arguments.get("waits") or "")),
            },
        )
        result: dict[str, Any] = {
            "changed": False,
            "cause": diagnosis.cause.as_dict() if diagnosis.cause else None,
            "rung": None,
            "next_attempt": None,
            "next_candidate": diagnosis.next_candidate,
            "diagnosis": self._words(diagnosis),
        }
        # The rungs are arguments of vLLM; another engine makes room for the next candidate.
        if diagnosis.rung and arguments.get("climb", True) and plan.get("serving_engine") != SGLANG:
            result.update(self._climbed(diagnosis.rung, plan, changes, taken))
        return result

    def _climbed(
        self, rung: Rung, plan: Mapping[str, Any], changes: dict[str, Any], taken: list[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """What the next attempt is made with, and what to remember if it serves."""
        display.display(f"   ladder, rung {rung.number}: {rung.why}", color="yellow")
        rungs = [*taken, rung.as_dict()]
        key = learned_key(
            str(plan["preset"]), [host["name"] for host in plan["hosts"]], str(self._task.args["image_id"])
        )
        done = [Rung(entry["rung"], entry["name"], entry["changes"], entry["why"]) for entry in rungs]
        learned = remembered(self._task.args.get("known") or {}, key, EngineSettings.of(plan["engine"]), done)
        learned[key]["changes"] = {**changes, **rung.changes}
        return {
            "rung": rung.as_dict(),
            "next_attempt": {"rungs": rungs, "changes": {**changes, **rung.changes}, "learned": learned},
        }

    @staticmethod
    def _texts(variables: Mapping[str, Any], name: str) -> list[str]:
        logs = (variables["hostvars"][host].get(name) for host in variables["ansible_play_hosts_all"])
        return [str(log["stdout"]) for log in logs if isinstance(log, Mapping) and log.get("stdout")]

    @staticmethod
    def _stalled_seconds(variables: Mapping[str, Any], name: str) -> float:
        """For how long nothing had moved on any host, when the wait ended for that reason."""
        waits = (variables["hostvars"][host].get(name) for host in variables["ansible_play_hosts_all"])
        return max(
            (float(wait.get("stalled_seconds") or 0) for wait in waits if isinstance(wait, Mapping)), default=0.0
        )

    @staticmethod
    def _words(diagnosis: Diagnosis) -> str:
        """The cause with its evidence, for the one message on top."""
        if not diagnosis.cause:
            return ""
        text = describe([diagnosis.findings[0]])
        return f"{text}\n  evidence: {diagnosis.cause.evidence}" if diagnosis.cause.evidence else text
