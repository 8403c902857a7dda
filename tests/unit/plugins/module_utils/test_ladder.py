# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._ladder import (
    MAX_RUNGS,
    EngineSettings,
    LadderLimits,
    Rung,
    as_arguments,
    feasible_utilization,
    learned_key,
    limits_of,
    next_rung,
    recalled,
    remembered,
    sufficient_utilization,
)

ASKED = EngineSettings(utilization=0.8, max_model_len=65536, max_num_seqs=4, max_num_batched_tokens=8192)
KV = {"needed_gib": 23.25, "available_gib": 22.5, "max_model_len": 65536, "feasible_max_model_len": 61440}


def climb(
    cause: str, phase: str = "", numbers: dict[str, Any] | None = None, asked: EngineSettings = ASKED, **limits: Any
) -> list[Rung]:
    """The same failure again and again, until the ladder ends."""
    settings, now = asked, LadderLimits(asked=asked, **limits)
    rungs: list[Rung] = []
    while rung := next_rung(cause, phase, numbers or {}, settings, now):
        assert rung.number == len(rungs) + 1 and rung.why
        changed = settings.with_changes(rung.changes)
        assert changed != settings
        settings, now = changed, replace(now, taken=(*now.taken, rung.name))
        rungs.append(rung)
    assert len(rungs) <= MAX_RUNGS
    return rungs


def test_graph_capture_ends_with_eager():
    rungs = climb("ENGINE.OOM_GRAPH_CAPTURE")
    assert [rung.name for rung in rungs] == ["utilization", "graphs", "sequences", "utilization", "eager"]
    assert [rung.changes for rung in rungs] == [
        {"utilization": 0.77},
        {"cudagraph_capture_sizes": [1, 2, 4]},
        {"max_num_seqs": 2},
        {"utilization": 0.74},
        {"enforce_eager": True},
    ]


def test_profile_makes_the_batch_smaller_but_not_below_the_block():
    rungs = climb("ENGINE.OOM_PROFILE", min_batched_tokens=4176)
    assert rungs[0].changes == {"max_num_batched_tokens": 4176}
    assert [rung.name for rung in rungs] == ["batch", "utilization", "sequences", "eager"]


def test_kv_cache_takes_the_engines_number():
    # Nobody knows the host's memory.
    (rung,) = climb("ENGINE.KV_CACHE_TOO_SMALL", numbers=KV)[:1]
    assert rung.changes == {"max_model_len": 61440}
    rungs = climb("ENGINE.KV_CACHE_TOO_SMALL", numbers=KV, total_gib=119.6)
    assert [rung.changes for rung in rungs[:2]] == [{"utilization": 0.81}, {"max_model_len": 61440}]


def test_context_never_falls_below_the_users_minimum():
    names = [rung.name for rung in climb("ENGINE.KV_CACHE_TOO_SMALL", numbers=KV, min_context=65536)]
    assert "context" not in names


def test_utilization_is_not_raised_above_the_safe_band():
    numbers = {**KV, "needed_gib": 40.0}
    assert next_rung(
        "ENGINE.KV_CACHE_TOO_SMALL", "", numbers, ASKED, LadderLimits(asked=ASKED, total_gib=119.6)
    ) == Rung(
        1,
        "context",
        {"max_model_len": 61440},
        "max_model_len 65536 to 61440: the longest that fits, as the engine says",
    )


def test_free_memory_decides_the_utilization():
    numbers = {"free_gib": 100.94, "total_gib": 121.69, "utilization": 0.835}
    (rung,) = climb("ENGINE.FREE_MEMORY_SHORT", numbers=numbers, asked=EngineSettings(utilization=0.835))
    assert rung.changes == {"utilization": 0.82}
    held = {"free_gib": 36.75, "total_gib": 121.63, "utilization": 0.85}
    assert climb("ENGINE.FREE_MEMORY_SHORT", numbers=held, asked=EngineSettings(utilization=0.85)) == []


def test_weights_and_overhead_bound_the_utilization():
    plan = {
        "engine": {"utilization": 0.6, "min_num_batched_tokens": 4176},
        "memory": {"weights_gib": 56.8, "overhead_gib": 10.0, "granted_gib": 71.76},
    }
    limits = limits_of(plan, EngineSettings(utilization=0.6))
    assert limits.total_gib == 119.6 and limits.min_batched_tokens == 4176
    assert 0.558 < limits.least_utilization < 0.559
    rungs = climb(
        "ENGINE.OOM_KV_CACHE", asked=EngineSettings(utilization=0.6), least_utilization=limits.least_utilization
    )
    assert "utilization" not in [rung.name for rung in rungs]


@pytest.mark.parametrize("cause", ["ENGINE.KILLED_BY_MEMGUARD", "ENGINE.KILLED_BY_KERNEL", "ENGINE.KILLED_BY_EARLYOOM"])
def test_a_killed_process_failed_like_its_phase(cause):
    assert climb(cause, "profile")[0].name == "batch"
    assert climb(cause, "graph_capture")[0].changes == {"utilization": 0.77}
    assert climb(cause, "serve")[0].changes == {"utilization": 0.75}
    assert climb(cause, "load") == []


@pytest.mark.parametrize(
    "cause",
    [
        "ENGINE.OOM_LOAD",
        "ENGINE.UNKNOWN",
        "ENGINE.RANK_DIED",
        "ENGINE.PORT_IN_USE",
        "ENGINE.HANG_AFTER_INIT",
        "ENGINE.RAY_MEMORY_MONITOR",
    ],
)
def test_other_causes_never_climb(cause):
    assert climb(cause, "load", KV) == []


def test_the_ladder_is_bounded():
    full = LadderLimits(taken=("a",) * MAX_RUNGS, asked=ASKED)
    assert next_rung("ENGINE.OOM_GRAPH_CAPTURE", "", {}, ASKED, full) is None
    # Also without a single known value.
    assert 0 < len(climb("ENGINE.OOM_GRAPH_CAPTURE", asked=EngineSettings())) <= MAX_RUNGS


def test_arithmetic_is_exact():
    assert feasible_utilization(100.94, 121.69) == 0.82
    assert feasible_utilization(0.5, 121.69) == 0.0
    assert sufficient_utilization(0.8, 1.196, 119.6) == 0.81
    assert sufficient_utilization(0.8, 1.2, 119.6) == 0.82


def test_arguments():
    changes = {"utilization": 0.77, "max_model_len": 61440, "cudagraph_capture_sizes": [1, 2, 4]}
    assert as_arguments(changes) == [
        *("--gpu-memory-utilization", "0.77"),
        *("--max-model-len", "61440"),
        *("--compilation-config", '{"cudagraph_capture_sizes":[1,2,4]}'),
    ]
    assert as_arguments({"enforce_eager": True, "cudagraph_capture_sizes": [1]}) == ["--enforce-eager"]


def test_what_worked_is_remembered_for_preset_hosts_and_image():
    key = learned_key("qwen35", ["spark-b", "spark-a"], "sha256:1")
    assert key == learned_key("qwen35", ["spark-a", "spark-b"], "sha256:1")
    assert key != learned_key("qwen35", ["spark-a", "spark-b"], "sha256:2")
    rungs = climb("ENGINE.KV_CACHE_TOO_SMALL", numbers=KV, total_gib=119.6)[:2]
    record = remembered({"other": {"changes": {}}}, key, ASKED, rungs)
    assert recalled(record, key, ASKED) == {"utilization": 0.81, "max_model_len": 61440}
    # The user has changed something since: the user's values count.
    assert recalled(record, key, EngineSettings(utilization=0.7)) == {}
    assert recalled(record, "unknown", ASKED) == {}
    # What needs no rung any more is forgotten, other entries stay.
    assert remembered(record, key, ASKED, []) == {"other": {"changes": {}}}
