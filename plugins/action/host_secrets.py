# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.dgxspark.serving.plugins.module_utils._host_secrets import checked_lengths, new_secret


class ActionModule(ActionBase):
    """Asks the host for its secrets only where some host has one of them: otherwise they are made here."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("lengths", "known"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        try:
            lengths = checked_lengths(self._task.args.get("lengths"), "lengths")
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        known = self._task.args.get("known") or {}
        if known and not any(path in (found or {}) for found in known.values() for path in lengths):
            made = {} if self._task.check_mode else {path: new_secret(length) for path, length in lengths.items()}
            return {"changed": True, "secrets": made}
        result: dict[str, Any] = self._execute_module(
            module_name="dgxspark.serving.host_secrets", module_args={"lengths": lengths}, task_vars=task_vars
        )
        return result
