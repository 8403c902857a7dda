# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a registered result says of each host, printed one host after the other.

PRIVATE to this collection.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase


class HostResultsAction(ActionBase):
    """Base of actions that take the name of a registered result. Runs on the control node only.

    show() prints what a host has to say, and returns why it has failed, or an empty text. One that failed makes the task fail.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("results",))

    @abstractmethod
    def show(self, host: str, result: Mapping[str, Any]) -> str: ...

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        failures = []
        for host in variables["ansible_play_hosts_all"]:
            failure = self.show(host, variables["hostvars"][host].get(str(self._task.args["results"])) or {})
            if failure:
                failures.append(f"{host}: {failure}")
        return {"changed": False, **({"failed": True, "msg": "\n".join(failures)} if failures else {})}
