# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one message on top, and when another image may be tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.action import deployment_failure

HOSTS = ["spark-a", "spark-b"]
CHOICE = {"image": "a:1", "others": ["b:1"]}
DIAGNOSIS = {
    "diagnosis": "The image has no code for this GPU. [ENGINE.NO_KERNEL]\n  evidence: no kernel image",
    "cause": {"id": "ENGINE.NO_KERNEL"},
    "next_candidate": True,
}


class Log:
    def __init__(self, _run: str) -> None:
        self.run = _run

    def gates(self) -> list[Any]:
        return [SimpleNamespace(number="9", title="serve")]


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(deployment_failure.ActionBase, "run", lambda *_arguments: {})
    monkeypatch.setattr(deployment_failure, "RunLog", Log)

    def go(
        diagnosis: dict[str, Any] | None = None, restored: dict[str, Any] | None = None, **arguments: Any
    ) -> dict[str, Any]:
        action = object.__new__(deployment_failure.ActionModule)
        action._task = SimpleNamespace(args={"run": "r", "head": "spark-a", "choice": CHOICE, **arguments})
        own = {
            "deploy_failure": "spark-a: dgxspark-vllm.service is failed.",
            "service_teardown_restored": {"restored": ["unit old.service"]} if restored is None else restored,
        }
        hostvars = {"spark-a": {**own, "vllm_serve_diagnosis": diagnosis or DIAGNOSIS}, "spark-b": own}
        result: dict[str, Any] = action.run(None, {"hostvars": hostvars, "groups": {"spark": HOSTS}})
        return result

    return go


def test_another_image_is_tried_when_it_is_the_remedy_and_all_is_as_before(end: Any) -> None:
    found = end(tried={"z:1": "hangs"})
    assert (found["failed"], found["goes_on"]) == (False, True)
    assert found["tried"] == {"z:1": "hangs", "a:1": "The image has no code for this GPU. [ENGINE.NO_KERNEL]"}
    assert "The deployment failed at gate 9 (serve)." in found["msg"]


@pytest.mark.parametrize(
    "values",
    [
        {"diagnosis": {**DIAGNOSIS, "next_candidate": False}},
        {"diagnosis": {**DIAGNOSIS, "cause": {"id": "ENGINE.ARGUMENT_REFUSED"}}},
        {"diagnosis": {"diagnosis": ""}},
        {"choice": {**CHOICE, "others": []}},
        {"choice": {}},
        {"rollback": False},
        {"restored": {"unreachable": True}},
        {"restored": {"failed": True, "restored": [], "msg": "unit old.service does not run"}},
        {"restored": {}},
    ],
)
def test_the_run_ends_in_all_other_cases(end: Any, values: dict[str, Any]) -> None:
    found = end(**values)
    assert (found["failed"], found["goes_on"], found["tried"]) == (True, False, {})
    assert found["msg"].startswith("The deployment failed at gate 9 (serve).")
    assert found["msg"].count("dgxspark-vllm.service is failed") == 1
