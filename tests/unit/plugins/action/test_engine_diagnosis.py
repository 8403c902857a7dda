"""From the journals of all hosts to the next attempt, and to what is remembered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.action import engine_diagnosis
from ansible_collections.dgxspark.serving.plugins.filter.ladder import recalled_changes
from ansible_collections.dgxspark.serving.plugins.module_utils._ladder import as_arguments

PLAN = {
    "preset": "p",
    "hosts": [
        {"name": "spark-a", "rank": 0, "gpus": 1, "control_address": "10.0.0.1"},
        {"name": "spark-b", "rank": 1, "gpus": 1, "control_address": "10.0.0.2"},
    ],
    "engine": {
        "utilization": 0.85,
        "max_model_len": 196608,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 8192,
        "min_context": 16384,
    },
    "memory": {"weights_gib": 57.0, "overhead_gib": 10.0, "host_gib": 119.6},
}
# The wording of vLLM 0.32 (vllm/v1/core/kv_cache_utils.py).
TOO_SMALL = (
    "2026-11-30T14:00:00+00:00 spark-a docker[9]: (EngineCore pid=7) ERROR 11-30 14:00:00 [core.py:1161] ValueError: To serve at "
    "least one request with the models's max seq len (196608), (23.25 GiB KV cache is needed, which is larger than the available KV "
    "cache memory (12.5 GiB). Based on the available memory, the estimated maximum model length is 105696. Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n"
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    def go(text: str, wait: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        monkeypatch.setattr(engine_diagnosis.ActionBase, "run", lambda *_arguments: {})
        action = object.__new__(engine_diagnosis.ActionModule)
        action._task = SimpleNamespace(args={"logs": "rank_log", "plan": PLAN, "image_id": "sha256:1", **arguments})
        variables = {
            "ansible_play_hosts_all": ["spark-a", "spark-b"],
            "hostvars": {
                "spark-a": {"rank_log": {"stdout": text}},
                "spark-b": {"rank_log": {"unreachable": True}, "engine_wait": wait},
            },
        }
        result: dict[str, Any] = action.run(None, variables)
        return result

    return go


def test_a_cache_that_is_too_small_leads_to_a_rung_that_is_remembered(run: Any) -> None:
    found = run(TOO_SMALL)
    assert found["cause"]["id"] == "ENGINE.KV_CACHE_TOO_SMALL"
    facts = found["next_attempt"]
    assert facts["changes"] == {"max_model_len": 105696}
    assert as_arguments(facts["changes"]) == ["--max-model-len", "105696"]
    # The next deployment begins with it, unless the user asks for something else, the image or the hosts differ.
    learned = facts["learned"]
    assert recalled_changes(learned, PLAN, "sha256:1") == {"max_model_len": 105696}
    assert recalled_changes(learned, PLAN, "sha256:2") == {}
    assert recalled_changes(learned, {**PLAN, "engine": {**PLAN["engine"], "max_model_len": 65536}}, "sha256:1") == {}


def test_what_was_changed_before_stays_changed(run: Any) -> None:
    first = run(TOO_SMALL, changes={"utilization": 0.82}, rungs=[])
    assert first["next_attempt"]["changes"] == {"utilization": 0.82, "max_model_len": 105696}
    assert first["next_attempt"]["rungs"] == [first["rung"]]


def test_after_a_failure_that_is_none_of_memory_nothing_is_climbed(run: Any) -> None:
    found = run("vllm serve: error: unrecognized arguments: --no-such-argument\n")
    assert found["rung"] is None
    assert found["next_attempt"] is None
    assert "--no-such-argument" in found["diagnosis"]


def test_without_permission_to_climb_it_only_says_why(run: Any) -> None:
    found = run(TOO_SMALL, climb=False)
    assert found["rung"] is None
    assert "The KV cache is" in found["diagnosis"]
    assert "evidence: " in found["diagnosis"]


def test_a_wait_that_ended_because_nothing_moved_is_a_hang(run: Any) -> None:
    log = "2026-11-30T14:00:00+00:00 spark-a docker[9]: (EngineCore pid=7) INFO 11-30 14:00:00 [core.py:1] Starting to load model /m\n"
    assert run(log, waits="engine_wait")["cause"] is None
    hang = run(log, waits="engine_wait", wait={"stalled_seconds": 900.0})
    assert hang["cause"]["id"] == "ENGINE.HANG"


def test_logs_without_a_failure_say_nothing(run: Any) -> None:
    assert run("")["diagnosis"] == ""
