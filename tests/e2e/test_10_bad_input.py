"""Each bad input ends with one clear error before anything is stopped. Runs on hosts that serve their first services."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from conftest import CHECKOUT, lab, on, run_playbook, what_ran_before_runs


@pytest.fixture(scope="module", autouse=True)
def untouched_services() -> Iterator[None]:
    lab("reset")
    assert what_ran_before_runs() == {}
    yield
    assert what_ran_before_runs() == {}


def inventory_with(tmp_path: Path, **hosts: tuple[str, dict[str, object]]) -> str:
    """An inventory beside the lab's: host name to (group, variables)."""
    spark: dict[str, dict[str, dict[str, object]]] = {"head": {"hosts": {}}, "worker": {"hosts": {}}}
    for name, (group, variables) in hosts.items():
        spark[group]["hosts"][name.replace("_", "-")] = variables
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"spark": {"children": spark}}), encoding="utf-8")
    group_vars = tmp_path / "group_vars"
    group_vars.mkdir()
    text = (CHECKOUT / "inventories/lab_inventory/group_vars/spark.yml").read_text(encoding="utf-8")
    (group_vars / "spark.yml").write_text(text.replace("{{ inventory_dir }}/../..", str(CHECKOUT)), encoding="utf-8")
    return str(tmp_path)


HEAD = {"spark_fabric_addresses": ["192.168.240.12", "192.168.241.12"], "spark_management_address": "192.168.242.12"}
WORKER = {"spark_fabric_addresses": ["192.168.240.13", "192.168.241.13"]}


def test_no_head(tmp_path: Path) -> None:
    run = run_playbook(inventory=inventory_with(tmp_path, lab_worker=("worker", WORKER)))
    run.assert_stopped_at("1")
    assert "Group head must have exactly one host, found none" in run.output


def test_two_heads(tmp_path: Path) -> None:
    run = run_playbook(inventory=inventory_with(tmp_path, lab_head=("head", HEAD), lab_worker=("head", WORKER)))
    run.assert_stopped_at("1")
    assert "found 2 (lab-head, lab-worker)" in run.output


def test_worker_without_fabric_address(tmp_path: Path) -> None:
    run = run_playbook(inventory=inventory_with(tmp_path, lab_head=("head", HEAD), lab_worker=("worker", {})))
    run.assert_stopped_at("1")
    assert "spark_fabric_addresses of worker lab-worker is empty" in run.output


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("spark_tensor_parallel=3", "4 attention heads cannot be divided by tensor parallel size 3"),
        ("spark_tensor_parallel=4", "4 x pipeline parallel 1 = 4 ranks"),
        ("spark_backend=slurm", "spark_backend is 'slurm'; allowed: ray, mp, auto"),
        ("spark_preset=nothing", "Presets of the collection: qwen35_122b_fp8"),
        # Of a role that would do its work after the teardown.
        (
            "vllm_serve_canary_seconds=soon",
            "vllm_serve_canary_seconds: argument 'vllm_serve_canary_seconds' is of type str",
        ),
    ],
)
def test_values_that_do_not_fit(value: str, words: str) -> None:
    run = run_playbook("-e", value)
    run.assert_stopped_at("1")
    assert words in " ".join(run.output.split())


def test_no_candidate_present() -> None:
    run = run_playbook("-e", '{"spark_candidates": [{"image": "nowhere:1", "engine": "vllm"}]}')
    run.assert_stopped_at("3")
    assert "rejected nowhere:1: is not on lab-head" in run.output
    assert "docker pull nowhere:1" in run.output


def test_candidate_without_the_architecture() -> None:
    run = run_playbook("-e", '{"spark_candidates": [{"image": "vllm-node:0.14", "engine": "vllm", "local": true}]}')
    run.assert_stopped_at("3")
    assert "vLLM 0.14.1 does not know Qwen3_5MoeForConditionalGeneration; the closest it knows is Qwen3" in run.output


def test_model_folder_without_config() -> None:
    on("spark-head", "mkdir", "-p", "/srv/models/empty")
    try:
        run = run_playbook("-e", "spark_model_folder=/srv/models/empty")
    finally:
        on("spark-head", "rmdir", "/srv/models/empty")
    run.assert_stopped_at("4")
    assert "/srv/models/empty holds no config.json" in run.output


@contextmanager
def stranger(*command: str) -> Iterator[None]:
    """A process of somebody on the head for the time of a test."""
    process = subprocess.Popen(["docker", "exec", "spark-head", *command])
    try:
        yield
    finally:
        on("spark-head", "pkill", "-f", command[-1], check=False)
        process.wait(timeout=30)


def test_memory_held_by_a_stranger() -> None:
    with stranger("env", "LAB_GPU_MIB=30000", "sleep", "987"):
        run = run_playbook()
    run.assert_stopped_at("2")
    assert "29.3 GiB of GPU memory is held by process sleep" in " ".join(run.output.split())
    assert "spark_stop: {processes: [sleep]}" in run.output
    assert "spark_keep: {processes: [sleep]}" in run.output


def test_port_held_by_a_stranger() -> None:
    with stranger("python3", "-m", "http.server", "8765"):
        run = run_playbook("-e", "spark_api_port=8765")
    run.assert_stopped_at("2")
    assert "port 8765 is held by process http.server" in " ".join(run.output.split())


def test_docker_not_running_on_one_host() -> None:
    on("spark-worker", "systemctl", "stop", "docker.service", "docker.socket")
    try:
        run = run_playbook()
    finally:
        on("spark-worker", "systemctl", "start", "docker.socket", "docker.service")
    run.assert_stopped_at("0")
    assert "lab-worker: The Docker Engine does not answer" in run.output
    assert "systemctl start docker" in run.output


def test_ssh_to_one_host_fails() -> None:
    on("spark-worker", "systemctl", "stop", "ssh.service", "ssh.socket", check=False)
    try:
        run = run_playbook("-e", "ansible_ssh_common_args='-F .lab/ssh_config -o ControlMaster=no -o ControlPath=none'")
    finally:
        on("spark-worker", "systemctl", "start", "ssh.service")
    run.assert_stopped_at("0")
    assert "lab-worker cannot be reached over SSH" in run.output


def test_wrong_sudo_password() -> None:
    run = run_playbook("-e", "ansible_become_password=wrong")
    run.assert_stopped_at("0")
    assert "sudo on lab-head refuses" in run.output
    assert "--ask-become-pass" in run.output


def test_limit_leaves_a_host_out() -> None:
    run = run_playbook("--limit", "lab-head")
    run.assert_stopped_at("0")
    assert "lab-worker is in group spark but does not take part in this run" in run.output


def test_too_few_forks() -> None:
    run = run_playbook("--forks", "1")
    run.assert_stopped_at("1")
    assert "forks is 1, but 2 hosts must work at the same time" in " ".join(run.output.split())


def test_an_unlisted_container_ends_the_run_or_is_stopped_as_the_user_wants() -> None:
    on(
        "spark-head",
        "docker",
        "run",
        "-d",
        "--name",
        "notebook",
        "-e",
        "LAB_GPU_MIB=5000",
        "lab-service:1",
        "--name",
        "notebook",
        "--port",
        "8105",
    )
    try:
        refused = run_playbook()
        allowed = run_playbook("--check", "--diff", "-e", "spark_unlisted_holders=stop")
    finally:
        on("spark-head", "docker", "rm", "-f", "notebook")
    refused.assert_stopped_at("2")
    assert "4.9 GiB of GPU memory is held by container notebook" in " ".join(refused.output.split())
    assert "spark_stop: {containers: [notebook]}" in refused.output
    assert allowed.returncode == 0, allowed.output[-3000:]
    assert "-container notebook\n" in allowed.output
