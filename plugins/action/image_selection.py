# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.module_utils._backend import RAY
from ansible_collections.dgxspark.serving.plugins.module_utils._candidates import (
    Choice,
    Wish,
    choose,
    requirements_of_engines,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._image_name import local_name
from ansible_collections.dgxspark.serving.plugins.module_utils._probe_memory import (
    code_digest,
    probe_key,
    recalled_probe,
)

display = Display()

_PROBE = "dgxspark.serving.registry_probe"
_MEMORY = "dgxspark.serving.remembered_choice"
_ACCESS = ("registry_username", "registry_password", "registry_ca_path", "registry_plain_http")


class ActionModule(ActionBase):
    """Gate 3 on the head: asks registry_probe about the candidates and takes the first that can serve the model."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(
        (
            "candidates",
            "architecture",
            "requirements",
            "reasoning_parser",
            "tool_call_parser",
            "head",
            "backend",
            "allow_unpinned",
            "prefer_local",
            "machines",
            "tried",
            "remembered",
            "present",
            "probed",
            *_ACCESS,
        )
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments, self._vars = self._task.args, task_vars
        candidates = [dict(candidate) for candidate in arguments["candidates"]]
        self._check_machines(arguments.get("machines") or {})
        self._requirements, engines = requirements_of_engines(arguments["requirements"])
        names = list(dict.fromkeys(local_name(str(candidate["image"])) for candidate in candidates))
        key = self._memory_key(names)
        recalled = recalled_probe(arguments.get("probed") or {}, key) if key else None
        probe = recalled or self._probe(names, {})
        if probe.get("failed"):
            return {**probe, "msg": f"The candidate images could not be looked at: {probe.get('msg')}"}
        remembered = arguments.get("remembered")
        if remembered is None:
            remembered = self._execute_module(module_name=_MEMORY, module_args={}, task_vars=task_vars).get("images")
        wish = Wish(
            str(arguments.get("backend") or RAY),
            boolean(arguments.get("allow_unpinned") or False),
            boolean(arguments.get("prefer_local") or False),
            remembered or {},
            engines,
            arguments.get("tried") or {},
        )
        choice = choose(
            candidates, probe["images"], probe["suitable"], str(arguments["head"]), wish, self._ask_registry
        )
        for line in choice.lines():
            display.display(f"   {line}")
        result: dict[str, Any] = {"changed": False, **choice.as_dict()}
        if not choice.image:
            result["failed"] = True
            result["msg"] = "No candidate image can serve the model; nothing was stopped.\n" + "\n".join(choice.lines())
        else:
            found = None if recalled or not key else {name: probe[name] for name in ("images", "suitable")}
            self._remember(candidates, choice, wish, {"key": key, **found} if found else None)
        return result

    @staticmethod
    def _check_machines(machines: Mapping[str, str]) -> None:
        """One image serves on all hosts, so they must be of one architecture."""
        if len(set(machines.values())) > 1:
            found = ", ".join(f"{host}: {machine}" for host, machine in machines.items())
            raise AnsibleActionFail(
                f"The hosts are of different architectures ({found}), and one image must run on all of them. Deploy on hosts of one kind."
            )

    def _memory_key(self, names: list[str]) -> str:
        """Empty where it is not known what the head has: an attempt before this one may have pulled some."""
        present = self._task.args.get("present")
        return (
            ""
            if present is None or self._task.args.get("tried")
            else probe_key(names, present, self._questions(), code_digest())
        )

    def _questions(self) -> dict[str, Any]:
        """What is asked of every image."""
        arguments = self._task.args
        parsers = ("reasoning_parser", "tool_call_parser")
        return {
            "architecture": [arguments["architecture"]],
            "require": self._requirements["require"],
            "prefer": self._requirements.get("prefer") or {},
            **{name: str(arguments[name]) for name in parsers if arguments.get(name)},
        }

    def _probe(self, images: list[str], more: Mapping[str, Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._execute_module(
            module_name=_PROBE, module_args={"image": images, **self._questions(), **more}, task_vars=self._vars
        )
        return found

    def _ask_registry(self, reference: str) -> tuple[Mapping[str, Any], bool]:
        display.display(f"   asking the registry about {reference}")
        access = {name: self._task.args[name] for name in _ACCESS if self._task.args.get(name)}
        found = self._probe([reference], {"source": "remote", **access})
        if found.get("failed"):
            message = str(found.get("msg"))
            return {"findings": [{"severity": "error", "message": message, "remedy": "", "id": ""}]}, False
        return found["images"][0], reference in found["suitable"]

    def _remember(
        self, candidates: list[dict[str, Any]], choice: Choice, wish: Wish, probe: Mapping[str, Any] | None
    ) -> None:
        """probe: what was found anew in the images of the head."""
        name = next(str(entry["image"]) for entry in candidates if local_name(str(entry["image"])) == choice.image)
        known = wish.remembered.get(name) or {}
        # An image that the head has already keeps the digest under which it was pulled.
        digest = choice.pull.get("digest") or (known.get("digest", "") if known.get("id") == choice.image_id else "")
        if probe or known != {"digest": digest, "id": choice.image_id}:
            noted = {"image": name, "digest": digest, "id": choice.image_id, **({"probe": probe} if probe else {})}
            self._execute_module(module_name=_MEMORY, module_args=noted, task_vars=self._vars)
