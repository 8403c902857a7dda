# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.module_utils._deployment_status import describe_status

display = Display()


class ActionModule(ActionBase):
    """Prints the state of all hosts, one after the other. Runs on the control node only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("results",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        failures = []
        for host in variables["ansible_play_hosts_all"]:
            result = variables["hostvars"][host].get(str(self._task.args["results"])) or {}
            display.display(f"== {host}", color="bright blue")
            if "status" not in result:
                failures.append(f"{host}: {result.get('msg') or 'no answer'}")
                display.display(f"   {result.get('msg') or 'no answer'}")
                continue
            for line in describe_status(result["status"]):
                display.display(f"   {line}")
        if failures:
            return {"changed": False, "failed": True, "msg": "\n".join(failures)}
        return {"changed": False}
