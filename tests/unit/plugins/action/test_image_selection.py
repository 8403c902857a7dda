# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""When the head is asked again what its images have, and when not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.dgxspark.serving.plugins.action import image_selection
from ansible_collections.dgxspark.serving.plugins.action.image_selection import ActionModule

IMAGE, ID = "vllm-node:0.32", "sha256:" + "1" * 64
PRESENT = {IMAGE: {"id": ID, "size_gib": 20.0, "digests": []}}


class Head:
    """What the modules on the head answer. asked: modules that were called; kept: what the next run's survey finds there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
        self.asked: list[str] = []
        self.kept: dict[str, dict[str, Any]] = {"remembered": {}, "probed": {}}

    def run(self, **more: Any) -> dict[str, Any]:
        action = object.__new__(ActionModule)
        arguments = {
            "candidates": [{"image": IMAGE, "engine": "vllm", "local": True}],
            "architecture": "Qwen3_5MoeForConditionalGeneration",
            "requirements": {"require": {"ray": True}},
            "head": "head",
            "present": PRESENT,
            **self.kept,
            **more,
        }
        action._task = SimpleNamespace(args=arguments)
        action._execute_module = self._module
        self.asked.clear()
        result: dict[str, Any] = action.run(None, {})
        return result

    def _module(self, module_name: str, module_args: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        self.asked.append(module_name.rpartition(".")[2])
        if module_name.endswith("registry_probe"):
            entry = {"image": IMAGE, "id": ID, "present": True, "engine": "vllm", "engine_version": "0.32.0"}
            entry |= {"versions": {"ray": "2.60"}, "findings": [], "digests": []}
            return {"images": [entry], "suitable": [IMAGE]}
        if not module_args:
            return {"images": self.kept["remembered"]}
        self.kept["remembered"][module_args["image"]] = {"digest": module_args["digest"], "id": module_args["id"]}
        self.kept["probed"] = module_args.get("probe") or self.kept["probed"]
        return {"images": self.kept["remembered"]}


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Head:
    return Head(monkeypatch)


def test_what_was_found_is_used_again_while_nothing_has_changed(head: Head) -> None:
    first = head.run()
    assert head.asked == ["registry_probe", "remembered_choice"]
    again = head.run()
    assert head.asked == [] and again == first and first["image_id"] == ID


@pytest.mark.parametrize(
    "change",
    [
        {"present": {IMAGE: {**PRESENT[IMAGE], "id": "sha256:" + "2" * 64}}},
        {"present": {IMAGE: {**PRESENT[IMAGE], "digests": ["vllm-node@sha256:" + "3" * 64]}}},
        {"present": {}},
        {"requirements": {"require": {"ray": True, "nccl": True}}},
        {"architecture": "Qwen3MoeForCausalLM"},
        {"reasoning_parser": "qwen3"},
        # An attempt before this one may have pulled an image after the survey.
        {"tried": {"other:1": "did not serve"}},
        # Damaged, or of another version.
        {"probed": {"key": "1"}},
    ],
)
def test_the_head_is_asked_when_something_has_changed(head: Head, change: dict[str, Any]) -> None:
    head.run()
    head.run(**change)
    assert head.asked[0] == "registry_probe"


def test_the_head_is_asked_when_this_collection_has_changed(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    head.run()
    monkeypatch.setattr(image_selection, "code_digest", lambda: "another version")
    head.run()
    assert head.asked == ["registry_probe", "remembered_choice"]


def test_without_a_survey_the_head_is_asked_for_all_of_it(head: Head) -> None:
    head.run(present=None, probed=None, remembered=None)
    assert head.asked == ["registry_probe", "remembered_choice", "remembered_choice"]
    assert head.kept["probed"] == {}


@pytest.mark.parametrize(("given", "wished"), [("false", False), ("true", True), (True, True), (None, False)])
def test_what_is_forbidden_on_the_command_line_is_forbidden(
    head: Head, monkeypatch: pytest.MonkeyPatch, given: object, wished: bool
) -> None:
    """-e spark_allow_unpinned=false gives text."""
    wishes = []
    choose = image_selection.choose
    monkeypatch.setattr(image_selection, "choose", lambda *given: wishes.append(given[4]) or choose(*given))
    head.run(allow_unpinned=given, prefer_local=given)
    assert [(wish.allow_unpinned, wish.prefer_local) for wish in wishes] == [(wished, wished)]
