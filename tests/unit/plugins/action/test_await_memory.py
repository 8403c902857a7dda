"""The wait for memory: progress is said, the page cache goes only where it is in the way, and there is an end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.action import await_memory

CACHE = {"id": "MEMORY.PAGE_CACHE"}


def look(available: float, fits: bool, *findings: dict[str, Any]) -> dict[str, Any]:
    held = (
        [{"container": "glm", "title": "", "process": "python3", "pid": 7, "used_gib": 80.0}] if available < 50 else []
    )
    return {
        "fits": fits,
        "findings": list(findings),
        "holders": held,
        "memory": {"available_gib": available, "total_gib": 119.7},
    }


class Clock:
    now = 0.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the wait over these looks; returns (result, lines said, what each look dropped)."""

    def go(*looks: dict[str, Any], settle: int = 20) -> tuple[dict[str, Any], list[str], list[bool]]:
        clock, said, dropped, answers = Clock(), [], [], list(looks)
        monkeypatch.setattr(await_memory, "time", clock)
        monkeypatch.setattr(await_memory.display, "display", said.append)
        action = object.__new__(await_memory.ActionModule)
        action._task = SimpleNamespace(check_mode=False, args={"utilization": 0.8, "settle_seconds": settle})
        monkeypatch.setattr(await_memory.ActionBase, "run", lambda *_arguments: {})

        def answer(drop: bool, _variables: Any) -> dict[str, Any]:
            dropped.append(drop)
            return answers.pop(0) if len(answers) > 1 else answers[0]

        monkeypatch.setattr(action, "_look", answer)
        return action.run(None, {"inventory_hostname": "spark-1"}), said, dropped

    return go


def test_it_ends_as_soon_as_the_engine_would_start(run: Any) -> None:
    result, said, dropped = run(look(20, False), look(20, False), look(100, True))
    assert result["fits"] is True
    assert result["waited_seconds"] == 4.0
    assert said == ["   [spark-1 +0 s] 20.0 of 119.7 GiB available, held: glm (pid 7, 80.0 GiB)"]
    assert dropped == [False, False, False]


def test_the_page_cache_is_dropped_once_and_only_where_it_is_in_the_way(run: Any) -> None:
    result, said, dropped = run(look(110, False, CACHE), look(110, False, CACHE), look(110, True))
    assert result["fits"] is True
    assert dropped == [False, True, False]
    assert "dropping the page cache" in said[0]


def test_memory_that_does_not_come_back_ends_the_wait_and_names_the_holder(run: Any) -> None:
    result, said, _dropped = run(look(20, False))
    assert result["fits"] is False
    assert result["waited_seconds"] == 20.0
    assert said[-1].endswith("held: glm (pid 7, 80.0 GiB)")
    assert len(said) == 2
