# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.plugin_utils._run_log import RunLog

display = Display()


class ActionModule(ActionBase):
    """Prints the heading of a gate and notes when it began. Runs on the control node only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("number", "title", "run"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        number, title = self._task.args.get("number"), self._task.args.get("title")
        if number is None or not title:
            raise AnsibleActionFail("gate needs number and title.")
        log = RunLog(self._task.args["run"]) if self._task.args.get("run") else RunLog.new()
        log.enter_gate(str(number), title)
        display.display(f"== Gate {number}: {title}", color="bright blue")
        return {"changed": False, "run": log.run, "folder": str(log.folder), "started": log.gates()[0].started}
