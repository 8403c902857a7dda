"""SGLang as the engine of a candidate: a hang, and a deployment (make test-full PART=sglang)."""

from __future__ import annotations

import json

import pytest
from conftest import answers, assert_only_ssh_and_the_api_answer, containers, lab, listening_ports, on, run_playbook

SGLANG, VLLM = "sglang-node:0.5", "vllm-node:0.32"


@pytest.fixture(scope="module", autouse=True)
def start_state() -> None:
    lab("reset")
    lab("mutation", "sglang")


def candidates(*images: str, **values: object) -> tuple[str, str]:
    chosen = [{"image": image, "engine": image.partition("-")[0], "local": True} for image in images]
    return "-e", json.dumps({"spark_candidates": chosen, "spark_backend": "auto", **values})


def test_sglang_that_hangs_after_nccl_makes_room_for_vllm() -> None:
    soon = {"timeouts": {"engine_progress": 60}}
    fault = {"ray_cluster_environment": {"LAB_FAULT": "hang"}, "spark_preset_overrides": soon}
    run = run_playbook(*candidates(SGLANG, VLLM, **fault))
    assert run.returncode == 0, run.output[-3000:]
    text = " ".join(run.output.split())
    assert f"chosen {SGLANG}: sglang 0.5.11" in text
    assert "the engine hangs after NCCL's initialisation" in text
    assert f"Another image may serve: {VLLM}." in text
    assert f"rejected {SGLANG}: did not serve in this run: " in text
    assert "2 Ray nodes" in text and answers()


def test_sglang_serves_on_two_hosts_behind_the_key() -> None:
    run = run_playbook(*candidates(SGLANG))
    assert run.returncode == 0, run.output[-3000:]
    assert "2 host(s) without Ray (mp)" in run.output and "sglang 0.5.11" in run.output
    assert answers()
    url = "http://127.0.0.1:8000/v1/models"
    assert on("spark-head", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url) == "401"
    key = on("spark-head", "cat", "/etc/dgxspark/api-key").strip()
    for host in ("spark-head", "spark-worker"):
        seen = on(host, "ps", "axww", "-o", "args") + json.dumps(containers(host))
        assert key not in seen + on(host, "journalctl", "--no-pager")
    assert_only_ssh_and_the_api_answer({20121})
    assert 8000 not in listening_ports("spark-worker")


def test_a_second_run_changes_nothing() -> None:
    run = run_playbook(*candidates(SGLANG))
    assert run.returncode == 0, run.output[-3000:]
    assert set(run.changed.values()) == {0}
