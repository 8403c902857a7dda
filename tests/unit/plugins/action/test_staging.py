"""Two copies in the background: what each of them says when one has failed."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.action import staging
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import ENDED

FAILED = {"failed": True, "msg": "No word from worker for 120 s."}
# What Ansible's wrapper makes of a module that ends without a result.
NO_RESULT = {"failed": True, "msg": "ValueError: No start of json char found", "data": "", "stderr": f"{ENDED}\n"}
DONE = {"changed": True, "msg": ""}


class Copies(staging.ActionModule):  # type: ignore[misc]
    """looks: what each look at the two copies finds, by name; None while one runs."""

    def __init__(self, *looks: Mapping[str, Mapping[str, Any] | None]) -> None:
        self._host, self._vars, self.looks, self.ended = "head", {}, list(looks), []
        self._task = SimpleNamespace(args={}, async_val=0)
        self._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))

    def _module(self, name: str, options: Mapping[str, Any], in_background: bool = False) -> Mapping[str, Any]:
        if in_background:
            return {"results_file": f"/root/.ansible_async/{name}"}
        self.ended += options["end"]
        found = self.looks.pop(0)
        return {"jobs": {name: {"progress": {}, "result": found.get(name)} for name in options["jobs"]}}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging.time, "sleep", lambda _seconds: None)


def both() -> dict[str, dict[str, Any]]:
    return {name: {} for name in staging.MODULES}


def test_a_copy_that_is_ended_because_the_other_failed_is_no_failure_of_its_own() -> None:
    copies = Copies({}, {"weights": FAILED}, {"image": NO_RESULT})
    assert copies._in_background(both(), "run") == {"weights": FAILED, "image": {"msg": "", "ended": True}}
    assert copies.ended == ["image"]


def test_a_copy_that_fails_for_its_own_reason_meanwhile_says_so() -> None:
    own = {"failed": True, "msg": "No space left on device"}
    copies = Copies({"weights": FAILED}, {"image": own})
    assert copies._in_background(both(), "run")["image"] == own


def test_a_copy_that_somebody_else_ended_has_failed() -> None:
    copies = Copies({"weights": DONE, "image": NO_RESULT})
    assert copies._in_background(both(), "run")["image"]["failed"]


@pytest.mark.parametrize(("checksum", "looked"), [("false", True), (False, True), ("true", False), (True, False)])
def test_weights_are_read_whole_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, checksum: object, looked: bool
) -> None:
    """-e spark_model_checksum=false gives text."""
    copies = Copies()
    copies._task.args = {"looks": {"head": {}}, "hosts": [], "head": "head"}
    monkeypatch.setattr(staging, "all_have_the_same", lambda *_given: True)
    monkeypatch.setattr(staging, "as_results", lambda _look: {})
    assert (copies._nothing_to_do({"weights": {"checksum": checksum}, "image": {}}) is not None) is looked
