"""Mutations: each gate can fail, and each mutation stops at its own gate and no other (make test-full PART=gates)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from conftest import lab, nothing_of_ours_runs, on, run_playbook, what_ran_before_runs


@pytest.fixture(scope="module", autouse=True)
def fresh_lab() -> None:
    lab("reset")


@pytest.fixture(autouse=True)
def everything_comes_back() -> Iterator[None]:
    yield
    assert what_ran_before_runs() == {}
    assert nothing_of_ours_runs() == []


def test_an_image_whose_registry_lost_the_architecture_stops_at_gate_3() -> None:
    lab("mutation", "no-arch")
    run = run_playbook("-e", '{"spark_candidates": [{"image": "vllm-node:no-arch", "engine": "vllm", "local": true}]}')
    run.assert_stopped_at("3")
    assert "vLLM 0.32.0 does not know Qwen3_5MoeForConditionalGeneration" in " ".join(run.output.split())


def test_a_ray_node_without_a_gpu_stops_at_gate_7(tmp_path: Path) -> None:
    over = tmp_path / "no_gpu.yml"
    over.write_text(yaml.safe_dump({"all": {"hosts": {"lab-worker": {"ray_cluster_num_gpus": "0"}}}}), encoding="utf-8")
    run = run_playbook("-i", str(over))
    run.assert_stopped_at("7")
    assert "192.168.240.13 has 0 GPU(s) in Ray, expected 1" in " ".join(run.output.split())


def test_a_worker_that_cannot_reach_the_head_stops_at_gate_7() -> None:
    # Gate 2 tries the port. What it cannot see: connections are made, and packets with something in them get lost.
    rule = [
        "INPUT",
        "-p",
        "tcp",
        "--dport",
        "6379",
        "-s",
        "192.168.240.13",
        "-m",
        "length",
        "--length",
        "80:",
        "-j",
        "DROP",
    ]
    on("spark-head", "iptables", "-I", *rule)
    try:
        run = run_playbook()
    finally:
        on("spark-head", "iptables", "-D", *rule)
    run.assert_stopped_at("7")
    assert "1 of 2 Ray nodes have joined, missing: 192.168.240.13" in " ".join(run.output.split())


@pytest.mark.parametrize(
    ("kind", "words"),
    [("wrong-answer", "was answered with '2 + 2 = 5.'"), ("no-reasoning", "came without reasoning")],
)
def test_a_model_that_answers_wrong_stops_at_gate_10(
    kind: str, words: str, mutated_model: Callable[[str], str]
) -> None:
    run = run_playbook("-e", f"spark_model_folder={mutated_model(kind)}")
    run.assert_stopped_at("10")
    assert words in " ".join(run.output.split())


def test_an_engine_that_refuses_its_arguments_stops_at_gate_9() -> None:
    run = run_playbook("-e", '{"spark_engine_arguments": ["--no-such-argument"]}')
    run.assert_stopped_at("9")
    assert "unrecognized arguments: --no-such-argument" in " ".join(run.output.split())
