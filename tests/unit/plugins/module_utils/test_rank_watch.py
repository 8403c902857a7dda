"""Progress, phases and the verdict about Ray's nodes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._rank_watch import RankWatch, engine_phase, ray_verdict

EXPECTED = {"192.168.200.12": 1, "192.168.200.13": 1}


def node(address: str, gpus: int = 1, alive: bool = True) -> dict[str, Any]:
    return {"address": address, "gpus": gpus, "alive": alive}


@pytest.mark.parametrize(
    ("nodes", "state", "words"),
    [
        (None, "waiting", "does not answer"),
        ([node("192.168.200.12")], "waiting", "missing: 192.168.200.13"),
        ([node("192.168.200.12"), node("192.168.200.13", alive=False)], "waiting", "missing: 192.168.200.13"),
        ([node("192.168.200.12"), node("192.168.200.13")], "ready", "2 Ray nodes, 2 GPU(s), Ray 2.60.0"),
        (
            [node("192.168.200.12"), node("192.168.200.13", gpus=0)],
            "failed",
            "192.168.200.13 has 0 GPU(s) in Ray, expected 1",
        ),
        # Case 060: the head registered its management address.
        ([node("10.1.230.180"), node("192.168.200.13")], "failed", "10.1.230.180"),
        # Case 063: an old container joined from the same host.
        ([node("192.168.200.12"), node("192.168.200.13"), node("192.168.200.13")], "failed", "two Ray runtimes"),
    ],
)
def test_ray_verdict(nodes: list[dict[str, Any]] | None, state: str, words: str) -> None:
    answer = None if nodes is None else {"version": "2.60.0", "nodes": nodes}
    found, explanation = ray_verdict(answer, EXPECTED)
    assert found == state
    assert words in explanation


def test_phases_go_forward_only() -> None:
    phase = engine_phase(["INFO Initializing a V1 LLM engine (v0.32.0)"])
    assert phase == "starting"
    phase = engine_phase(["Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]"], phase)
    assert phase == "loading weights (1/2)"
    phase = engine_phase(["Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:02<00:00]"], phase)
    assert phase == "loading weights (2/2)"
    assert engine_phase(["INFO Initializing a V1 LLM engine"], phase) == phase
    assert engine_phase(["GPU KV cache size: 839,000 tokens"], phase) == "sizing the KV cache"


def test_repeated_waiting_is_no_progress() -> None:
    watch = RankWatch(started=0, progress_limit=60, total_limit=1000)
    watch.take_lines(["INFO weights loaded"], 10)
    watch.take_lines(["No available shared memory broadcast block found in 60 seconds."], 65)
    assert watch.overdue(69) == ""
    assert "no progress for 60 s" in watch.overdue(71)


def test_the_hard_limit_holds_whatever_moves() -> None:
    watch = RankWatch(started=0, progress_limit=60, total_limit=100)
    for second in range(0, 101, 10):
        watch.take_lines([f"line {second}"], second)
    assert "hard limit" in watch.overdue(101)


def unit(active: str = "active", sub: str = "running", restarts: int = 0) -> list[dict[str, Any]]:
    return [{"name": "dgxspark-vllm.service", "active": active, "sub": sub, "result": "success", "restarts": restarts}]


def test_an_engine_that_ended_with_success_has_failed() -> None:
    # Case 084: an engine's death ends with exit status 0.
    watch = RankWatch(0, 60, 100)
    assert watch.units_failed(unit()) == ""
    assert "is inactive" in watch.units_failed(unit("inactive", "dead"))


def test_a_restart_is_a_failure_but_for_a_waiting_worker() -> None:
    watch = RankWatch(0, 60, 100)
    assert watch.units_failed(unit(restarts=2)) == ""
    assert "started again" in watch.units_failed(unit(restarts=3))
    assert watch.units_failed(unit(restarts=3), restarts_allowed=True) == ""
    assert "failed" in watch.units_failed(unit("failed", "failed"), restarts_allowed=True)
