# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.plugin_utils._host_results import HostResultsAction

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


class ActionModule(HostResultsAction):
    """Says what was stopped, kept and brought back on each host."""

    def show(self, host: str, result: Mapping[str, Any]) -> str:
        if result.get("failed") or result.get("unreachable"):
            return str(result.get("msg") or "no answer")
        for line in describe_teardown(result, self._task.check_mode) or ["nothing to do"]:
            display.display(f"   [{host}] {line}")
        return ""
