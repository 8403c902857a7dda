# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

# Keys of a result of service_teardown and how they are called on a terminal.
_SAID = (
    ("stopped", "stopped"),
    ("kept", "kept"),
    ("missing", "not there"),
    ("removed", "removed"),
    ("restored", "runs again"),
    ("ended", "was ended and cannot be brought back"),
    ("problems", "does not run as before"),
)


def describe_teardown(result: Mapping[str, Any], check_mode: bool = False) -> list[str]:
    """Lines about one host."""
    lines = []
    for key, words in _SAID:
        if result.get(key):
            said = f"would be {words}" if check_mode and key in ("stopped", "removed") else words
            lines.append(f"{said}: {', '.join(result[key])}")
    return lines


class ActionModule(ActionBase):
    """Says what was stopped, kept and brought back on each host. Runs on the control node only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("results",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        failures = []
        for host in variables["ansible_play_hosts_all"]:
            result = variables["hostvars"][host].get(str(self._task.args["results"])) or {}
            if result.get("failed") or result.get("unreachable"):
                failures.append(f"{host}: {result.get('msg') or 'no answer'}")
            lines = describe_teardown(result, self._task.check_mode) or ["nothing to do"]
            for line in lines if not result.get("failed") and not result.get("unreachable") else []:
                display.display(f"   [{host}] {line}")
        if failures:
            return {"changed": False, "failed": True, "msg": "\n".join(failures)}
        return {"changed": False}
