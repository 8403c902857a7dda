"""Gate 1: every value that does not fit is refused, all at once, with the variable's name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.dgxspark.serving.plugins.module_utils._plan import (
    PlannedHost,
    PlanOptions,
    PlanRefused,
    build_plan,
    memory_need,
    merged,
)

PRESETS = Path(__file__).parents[4] / "playbooks" / "presets"
HEAD = PlannedHost("spark-1a32", "head", ("192.168.200.12",), "10.1.230.180")
WORKER = PlannedHost("spark-5be3", "worker", ("192.168.200.13",))


@pytest.fixture
def preset() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((PRESETS / "qwen35_122b_fp8.yml").read_text(encoding="utf-8"))
    return loaded


def refusal(preset: dict[str, Any], hosts: list[PlannedHost], **options: Any) -> dict[str, str]:
    with pytest.raises(PlanRefused) as caught:
        build_plan(preset, hosts, PlanOptions(**options))
    return {finding.id: finding.message for finding in caught.value.findings}


def test_two_hosts_fit(preset: dict[str, Any]) -> None:
    plan = build_plan(preset, [WORKER, HEAD], PlanOptions())
    assert [(host["name"], host["rank"], host["role"]) for host in plan["hosts"]] == [
        ("spark-1a32", 0, "head"),
        ("spark-5be3", 1, "worker"),
    ]
    assert plan["world_size"] == 2
    assert plan["requirements"]["require"] == {"vllm": ">=0.17", "ray": True}
    arguments = plan["engine_arguments"]
    assert arguments[arguments.index("--tensor-parallel-size") + 1] == "2"
    assert arguments[arguments.index("--reasoning-parser") + 1] == "qwen3"
    assert "--enable-auto-tool-choice" in arguments


def test_without_ray_nothing_of_ray_is_planned(preset: dict[str, Any]) -> None:
    plan = build_plan(preset, [HEAD, WORKER], PlanOptions(backend="mp"))
    assert plan["backend"] == "mp" and "ray" not in plan["requirements"]["require"]
    assert not [name for name in plan["ports"] if "ray" in name] and {"mp_master", "mp_ranks"} <= set(plan["ports"])
    # With Ray all is as before, and no port is closed that nobody uses.
    over_ray = build_plan(preset, [HEAD, WORKER], PlanOptions())
    assert not [name for name in over_ray["ports"] if "mp" in name]


def test_without_ray_every_host_has_as_many_gpus(preset: dict[str, Any]) -> None:
    big = PlannedHost("spark-5be3", "worker", ("192.168.200.13",), gpus=3)
    over = merged(preset, {"parallel": {"tensor": 4}})
    assert "spark-1a32: 1, spark-5be3: 3" in refusal(over, [HEAD, big], backend="mp")["PLAN.MP_UNEVEN_GPUS"]
    assert "PLAN.MP_UNEVEN_GPUS" not in refusal(merged(over, {"candidates": []}), [HEAD, big])


def test_single_host_with_tensor_parallel_one_fits(preset: dict[str, Any]) -> None:
    small = merged(preset, {"parallel": {"tensor": 1}, "model": {"weights_gb": 65}})
    plan = build_plan(small, [PlannedHost("spark-1a32", "head", ())], PlanOptions())
    assert plan["world_size"] == 1


def test_the_model_needs_61_gb_a_rank(preset: dict[str, Any]) -> None:
    # 122 GB / 2 ranks = 61 GB = 56.81 GiB; 65536 tokens x 48 KiB / 2 ranks = 1.5 GiB.
    assert memory_need(preset, 2)["weights_gib"] == 56.81
    assert memory_need(preset, 2)["kv_cache_gib"] == 1.5


@pytest.mark.parametrize(
    ("hosts", "expected", "words"),
    [
        ([WORKER], "PLAN.HEAD_COUNT", "found none"),
        ([HEAD, PlannedHost("b", "head", ("192.168.200.14",))], "PLAN.HEAD_COUNT", "found 2 (spark-1a32, b)"),
        ([HEAD, PlannedHost("b", "worker", ())], "PLAN.FABRIC_ADDRESS_MISSING", "spark_fabric_addresses of worker b"),
        (
            [HEAD, PlannedHost("b", "worker", ("192.168.200.12",))],
            "PLAN.FABRIC_ADDRESS_TWICE",
            "192.168.200.12 is given to spark-1a32 and to b",
        ),
        ([HEAD], "PLAN.WORLD_SIZE", "1 host(s) with 1 GPU(s)"),
    ],
)
def test_inventories_that_do_not_fit(
    preset: dict[str, Any], hosts: list[PlannedHost], expected: str, words: str
) -> None:
    found = refusal(preset, hosts)
    assert expected in found
    assert words in found[expected]


@pytest.mark.parametrize(
    ("override", "expected", "words"),
    [
        (
            {"parallel": {"tensor": 3}},
            "PLAN.HEADS_NOT_DIVISIBLE",
            "32 attention heads cannot be divided by tensor parallel size 3",
        ),
        ({"parallel": {"tensor": 4}}, "PLAN.WORLD_SIZE", "4 x pipeline parallel 1 = 4 ranks"),
        ({"engine": {"utilization": 1.2}}, "PLAN.UTILIZATION", "spark_utilization is 1.2"),
        ({"engine": {"utilization": 0.5}}, "PLAN.DOES_NOT_FIT", "utilization 0.5"),
        ({"engine": {"max_model_len": 300000}}, "PLAN.CONTEXT_TOO_LONG", "the model knows 262144"),
        # Case 051: a batch must hold one block of the hybrid model.
        ({"engine": {"max_num_batched_tokens": 2048}}, "PLAN.BATCHED_TOKENS", "2048, this model's block needs 4176"),
        ({"candidates": []}, "PLAN.NO_CANDIDATES", "no candidate images"),
    ],
)
def test_values_that_do_not_fit(preset: dict[str, Any], override: dict[str, Any], expected: str, words: str) -> None:
    found = refusal(merged(preset, override), [HEAD, WORKER])
    assert expected in found
    assert words in found[expected]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"backend": "slurm"}, "PLAN.VALUE_NOT_ALLOWED"),
        ({"unlisted_holders": "kill"}, "PLAN.VALUE_NOT_ALLOWED"),
        ({"api_port": 70000}, "PLAN.VALUE_NOT_ALLOWED"),
        ({"open_ports": 22}, "PLAN.VALUE_NOT_ALLOWED"),
        ({"open_ports": "22"}, "PLAN.VALUE_NOT_ALLOWED"),
        ({"open_ports": [0]}, "PLAN.VALUE_NOT_ALLOWED"),
        ({"open_ports": ["ssh"]}, "PLAN.VALUE_NOT_ALLOWED"),
        ({"ssh_ports": ["-1"]}, "PLAN.VALUE_NOT_ALLOWED"),
        ({"stop": {"containers": ["embeddings"]}, "keep": {"containers": ["embeddings"]}}, "PLAN.STOP_AND_KEEP"),
        ({"stop": {"pods": ["a"]}}, "PLAN.VALUE_NOT_ALLOWED"),
    ],
)
def test_run_variables_that_are_not_allowed(preset: dict[str, Any], options: dict[str, Any], expected: str) -> None:
    assert expected in refusal(preset, [HEAD, WORKER], **options)


@pytest.mark.parametrize(
    ("options", "variable"),
    [
        # Ray's GCS, the middle of its workers' range, torch's store of mp, the copy of the image, the trial.
        ({"open_ports": [50000, 6379]}, "spark_open_ports is 6379"),
        ({"api_port": 20050}, "spark_api_port is 20050"),
        ({"api_port": 20120, "backend": "mp"}, "spark_api_port is 20120"),
        ({"open_ports": ["20110"]}, "spark_open_ports is 20110"),
        ({"ssh_ports": ["20112"]}, "ansible_port is 20112"),
    ],
)
def test_ports_that_the_deployment_needs_for_itself(
    preset: dict[str, Any], options: dict[str, Any], variable: str
) -> None:
    assert refusal(preset, [HEAD, WORKER], **options)["PLAN.PORT_OF_THE_DEPLOYMENT"].startswith(variable)


def test_ports_of_the_other_backend_are_free(preset: dict[str, Any]) -> None:
    plan = build_plan(preset, [HEAD, WORKER], PlanOptions(backend="mp", open_ports=[20050, 40022], ssh_ports=["40022"]))
    assert plan["open_ports"] == [20050, 40022]


def test_everything_is_reported_at_once(preset: dict[str, Any]) -> None:
    found = refusal(
        merged(preset, {"parallel": {"tensor": 3}, "engine": {"max_model_len": 300000}}), [WORKER], api_port=0
    )
    assert {"PLAN.HEAD_COUNT", "PLAN.HEADS_NOT_DIVISIBLE", "PLAN.CONTEXT_TOO_LONG", "PLAN.VALUE_NOT_ALLOWED"} <= set(
        found
    )


def test_merging_replaces_lists_and_keeps_the_base(preset: dict[str, Any]) -> None:
    before = copy.deepcopy(preset)
    result = merged(preset, {"engine": {"arguments": ["--enforce-eager"]}})
    assert result["engine"]["arguments"] == ["--enforce-eager"]
    assert result["engine"]["max_num_seqs"] == preset["engine"]["max_num_seqs"]
    assert preset == before
