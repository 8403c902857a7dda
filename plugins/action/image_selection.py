# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.module_utils._candidates import choose

display = Display()


class ActionModule(ActionBase):
    """Gate 3 on the head: asks registry_probe about the candidates and takes the first that can serve the model."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(
        ("candidates", "architecture", "requirements", "reasoning_parser", "tool_call_parser", "head")
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = self._task.args
        candidates = [dict(candidate) for candidate in arguments["candidates"]]
        probe: Mapping[str, Any] = self._execute_module(
            module_name="dgxspark.serving.registry_probe",
            module_args={
                "image": [str(candidate["image"]) for candidate in candidates],
                "architecture": [arguments["architecture"]],
                "require": arguments["requirements"].get("require") or {},
                "prefer": arguments["requirements"].get("prefer") or {},
                **{
                    name: str(arguments[name])
                    for name in ("reasoning_parser", "tool_call_parser")
                    if arguments.get(name)
                },
            },
            task_vars=task_vars,
        )
        if probe.get("failed"):
            return {**probe, "msg": f"The candidate images could not be looked at: {probe.get('msg')}"}
        choice = choose(candidates, probe["images"], probe["suitable"], str(arguments["head"]))
        for line in choice.lines():
            display.display(f"   {line}")
        result: dict[str, Any] = {"changed": False, **choice.as_dict()}
        if not choice.image:
            result["failed"] = True
            result["msg"] = "No candidate image can serve the model; nothing was stopped.\n" + "\n".join(choice.lines())
        return result
