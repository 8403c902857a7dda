# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.module_utils._deployment_status import describe_status
from ansible_collections.dgxspark.serving.plugins.plugin_utils._host_results import HostResultsAction

display = Display()


class ActionModule(HostResultsAction):
    """Prints the state of all hosts, one after the other."""

    def show(self, host: str, result: Mapping[str, Any]) -> str:
        display.display(f"== {host}", color="bright blue")
        failure = "" if "status" in result else str(result.get("msg") or "no answer")
        for line in [failure] if failure else describe_status(result["status"]):
            display.display(f"   {line}")
        return failure
