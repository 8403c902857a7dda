"""Each fault of ranks and engine ends with its cause, and with what ran before (make test-full PART=faults)."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator

import pytest
import yaml
from conftest import (
    ENGINE_STARTS,
    Deployment,
    Run,
    answers,
    lab,
    nothing_of_ours_runs,
    on,
    run_playbook,
    wait_until,
    what_ran_before_runs,
)

# A wait that has seen nothing move for so long ends: what hangs need not be waited for three minutes in each test.
SOON = ("-e", '{"spark_preset_overrides": {"timeouts": {"engine_progress": 75}}}')
MODEL = "/srv/models/qwen35-tiny"
RANK = "^ray::RayWorkerProc"
# From its return on: the host's boot, and the services that ran before.
RESTORES_ITSELF_WITHIN_SECONDS = 180


@pytest.fixture(scope="module", autouse=True)
def start_state() -> None:
    lab("reset")
    lab("mutation", "faulty")


@pytest.fixture(autouse=True)
def everything_comes_back() -> Iterator[None]:
    yield
    assert what_ran_before_runs() == {}
    assert nothing_of_ours_runs() == []


def faulty(kind: str, *others: str) -> tuple[str, ...]:
    """An engine that fails, and images that may be tried after it."""
    candidates = [{"image": image, "engine": "vllm", "local": True} for image in ("vllm-node:faulty", *others)]
    return "-e", json.dumps({"spark_candidates": candidates, "ray_cluster_environment": {"LAB_FAULT": kind}})


def words(run: Run) -> str:
    return " ".join(run.output.split())


def failed_at(run: Run, gate: str, *expected: str) -> None:
    assert run.returncode != 0
    assert f"The deployment failed at gate {gate}" in run.output, run.output[-3000:]
    for text in expected:
        assert text in words(run), run.output[-3000:]


def test_an_engine_out_of_memory_in_graph_capture_climbs_the_ladder_to_its_end() -> None:
    run = run_playbook(*faulty("graph-capture"))
    failed_at(run, "9 (serve)", "while CUDA graphs were captured", "tried already: utilization 0.52 to 0.49")
    rungs = re.findall(r"ladder, rung (\d)", run.output)
    assert 2 <= len(rungs) <= 5 and rungs == [str(number + 1) for number in range(len(rungs))]


def test_an_engine_that_dies_at_the_first_request() -> None:
    run = run_playbook(*faulty("first-request"))
    failed_at(run, "10 (acceptance)", "'What is 2+2?' got", "The engine died in phase serve")


def test_an_engine_that_dies_at_the_second_of_two_requests() -> None:
    run = run_playbook(*faulty("second-of-two"))
    # 500 while the engine's server still has the requests, 503 when it is gone.
    failed_at(run, "10 (acceptance)", "got status 50", "The engine died in phase serve")


def test_an_engine_that_hangs_after_the_ranks_are_connected() -> None:
    deployment = Deployment(*SOON)
    deployment.until(ENGINE_STARTS)
    wait_until(lambda: on("spark-worker", "pgrep", "-f", RANK, check=False) != "", 120)
    on("spark-worker", "pkill", "-STOP", "-f", RANK)
    run = deployment.end()
    failed_at(run, "9 (serve)", "no progress for 75 s", "Diagnosis:", "hang")


def test_a_rank_that_dies_while_the_engine_loads() -> None:
    deployment = Deployment(*SOON)
    deployment.until(ENGINE_STARTS)
    wait_until(lambda: on("spark-worker", "pgrep", "-f", RANK, check=False) != "", 120)
    on("spark-worker", "pkill", "-KILL", "-f", RANK)
    failed_at(deployment.end(), "9 (serve)", "ended in phase")


def test_a_rank_that_dies_while_the_engine_is_accepted() -> None:
    deployment = Deployment()
    deployment.until("== Gate 10")
    on("spark-worker", "pkill", "-KILL", "-f", RANK)
    failed_at(deployment.end(), "10 (acceptance)", "Rank 1 (lab-worker) ended in phase serve")


def test_a_port_that_is_taken_after_the_preflight() -> None:
    deployment = Deployment(*SOON)
    deployment.until("== Gate 7")
    stranger = subprocess.Popen(
        ["docker", "exec", "spark-head", "python3", "-m", "http.server", "8000"], stderr=subprocess.DEVNULL
    )
    try:
        failed_at(deployment.end(), "9 (serve)", "8000", "in use")
    finally:
        on("spark-head", "pkill", "-f", "http.server 8000", check=False)
        stranger.wait(timeout=30)
        on("spark-head", "systemctl", "start", "vllm-cluster.service", "vllm-proxy.service")
        wait_until(lambda: what_ran_before_runs() == {}, 60)


def test_a_model_that_is_gone_on_the_worker() -> None:
    deployment = Deployment(*SOON)
    deployment.until("== Gate 7")
    on("spark-worker", "sh", "-c", f"mkdir {MODEL}-away && mv {MODEL}/* {MODEL}-away/")
    try:
        failed_at(deployment.end(), "9 (serve)", "Diagnosis:", "192.168.240.13")
    finally:
        on("spark-worker", "sh", "-c", f"mv {MODEL}-away/* {MODEL}/ && rmdir {MODEL}-away")


def test_shared_memory_of_64_mib_is_refused_before_anything_is_stopped() -> None:
    on("spark-worker", "mount", "-o", "remount,size=64m", "/dev/shm")
    try:
        run = run_playbook()
    finally:
        on("spark-worker", "mount", "-o", "remount,size=2g", "/dev/shm")
    run.assert_stopped_at("2")
    assert "/dev/shm has 0.06 GiB" in words(run)


def test_a_ray_of_another_version(tmp_path: object) -> None:
    """Same image everywhere is a gate of its own; a stand-in of another Ray is what the worker's container loads first."""
    over = f"{tmp_path}/other_ray.yml"
    with open(over, "w", encoding="utf-8") as handle:
        hosts = {"lab-worker": {"ray_cluster_environment": {"PYTHONPATH": "/run/dgxspark/vllm"}}}
        yaml.safe_dump({"all": {"hosts": hosts}}, handle)
    deployment = Deployment("-i", over)
    deployment.until("== Gate 7")
    script = "import ray; ray.__version__ = '2.59.0'"
    on(
        "spark-worker",
        "sh",
        "-c",
        f'mkdir -p /etc/dgxspark/vllm && echo "{script}" > /etc/dgxspark/vllm/sitecustomize.py',
    )
    try:
        run = deployment.end()
    finally:
        on("spark-worker", "rm", "-f", "/etc/dgxspark/vllm/sitecustomize.py")
    failed_at(run, "7 (Ray cluster)", "Ray 2.59.0", "Ray 2.60.0", "Use the same image on all hosts")


def test_a_worker_that_goes_down_before_it_joins() -> None:
    deployment = Deployment()
    deployment.until("== Gate 7")
    subprocess.run(["docker", "kill", "spark-worker"], check=True, stdout=subprocess.DEVNULL)
    try:
        run = deployment.end()
    finally:
        lab("up")
    failed_at(run, "7 (Ray cluster)", "lab-worker")
    started = time.monotonic()
    wait_until(lambda: what_ran_before_runs() == {}, RESTORES_ITSELF_WITHIN_SECONDS)
    print(f"the worker runs as before {time.monotonic() - started:.0f} s after its start")


def test_an_image_that_cannot_serve_makes_room_for_the_next_candidate() -> None:
    """The last of this file: it ends with a deployment."""
    run = run_playbook(*faulty("no-kernel", "vllm-node:0.14", "vllm-node:0.32"))
    assert run.returncode == 0, run.output[-3000:]
    assert run.gates.count("9") == 2 and run.gates[-1] == "10"
    assert "Another image may serve: vllm-node:0.32." in run.output
    assert "rejected vllm-node:faulty: did not serve in this run: " in words(run)
    assert "The image has no code for this GPU" in words(run)
    assert answers()
    # Two runs were at work on the hosts: the first has brought everything back, the second has stopped it again.
    back = run_playbook(playbook="playbooks/rollback.yml")
    assert back.returncode == 0, back.output[-3000:]
