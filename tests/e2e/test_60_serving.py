"""After the deployment: secrets, closed ports, boot order, dead ranks, short memory (make test-full PART=serving)."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import (
    CHECKOUT,
    ENGINE_STARTS,
    Run,
    answers,
    ask_the_canary,
    assert_only_ssh_and_the_api_answer,
    assert_the_canary_restarts_the_engine,
    containers,
    lab,
    on,
    reboot_both,
    run_playbook,
    signalled,
    unit_state,
    wait_until,
)

HOSTS = ("spark-head", "spark-worker")
FABRIC = ("enp1s0f0np0", "enP2p1s0f0np0")
RANK = "ray::RayWorkerProc"
# Two starts of Ray and of the engine on two cores.
SERVES_AGAIN_WITHIN_SECONDS = 420


# What the user gives to the run; two of them have no use here.
SUDO_PASSWORD = "planted-sudo-password"
PLANTED = {
    "spark_hub_token": "hf_plantedhubtoken0123456789",
    "spark_registry_password": "planted-registry-password",
    "ansible_become_password": SUDO_PASSWORD,
}
# Where the secrets of the hosts belong, and nowhere else.
SECRET_FILES = ("/etc/dgxspark/api-key", "/etc/dgxspark/ray-token")


def set_sudo_password(password: str) -> None:
    for host in HOSTS:
        on(host, "sh", "-c", f"echo spark:{password} | chpasswd")


@pytest.fixture(scope="module", autouse=True)
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Run:
    lab("reset")
    secrets = tmp_path_factory.mktemp("secrets") / "secrets.json"
    secrets.write_text(json.dumps({**PLANTED, "spark_registry_username": "somebody"}))
    set_sudo_password(SUDO_PASSWORD)
    try:
        run = run_playbook("-vvv", "-e", f"@{secrets}")
    finally:
        set_sudo_password("spark-lab")
    assert run.returncode == 0, run.output[-3000:]
    return run


def started_at(unit: str) -> str:
    return on("spark-head", "systemctl", "show", "-p", "ActiveEnterTimestamp", "--value", unit).strip()


def engine_processes(host: str) -> str:
    return on(host, "pgrep", "-af", "^(VLLM::|ray::|.*vllm serve|.*raylet)", check=False)


def what_hosts_show(host: str) -> str:
    """Processes, units, journal, containers, and every file that the collection or the engine has written."""
    folders = "/etc/systemd/system /etc/dgxspark /var/lib/dgxspark /opt/dgxspark /run/dgxspark /tmp /var/tmp /home/spark /root"
    not_searched = " ".join(f"! -path {path}" for path in SECRET_FILES)
    script = f"find {folders} -xdev -type f {not_searched} -print0 2>/dev/null | xargs -0 cat"
    seen = on(host, "ps", "axww", "-o", "args") + json.dumps(containers(host))
    seen += on(host, "journalctl", "--no-pager", "--all")
    files = subprocess.run(["docker", "exec", host, "sh", "-c", script], capture_output=True, check=True).stdout
    return seen + files.decode(errors="replace")


def test_no_secret_in_the_output_or_on_a_host(deployment: Run) -> None:
    key = on("spark-head", "cat", SECRET_FILES[0]).strip()
    token = on("spark-head", "cat", SECRET_FILES[1]).strip()
    secrets = {"API key": key, "Ray token": token, **PLANTED}
    seen = {"output": deployment.output, **{host: what_hosts_show(host) for host in HOSTS}}
    # A search that finds nothing at all would pass, too.
    assert "TASK [" in seen["output"] and all("DGXSPARK_RUN=" in seen[host] for host in HOSTS)
    found = [f"{name} in {place}" for name, secret in secrets.items() for place, text in seen.items() if secret in text]
    assert found == []


def test_every_port_but_ssh_and_the_api_is_silent_for_the_management_network() -> None:
    assert_only_ssh_and_the_api_answer({6379})


def test_the_canary_says_ok() -> None:
    assert ask_the_canary() == "ok"


def test_a_run_waits_for_an_engine_that_loads() -> None:
    """As after a reboot: everything is as planned, and the API does not answer yet."""
    on("spark-head", "systemctl", "restart", "dgxspark-vllm.service")
    assert unit_state("spark-head", "dgxspark-vllm.service") == "active"
    assert not answers()
    run = run_playbook()
    assert run.returncode == 0, run.output[-3000:]
    assert run.gates == ["0", "1", "2", "3", "10"] and set(run.changed.values()) == {0}
    assert ENGINE_STARTS in run.output


def test_a_killed_engine_starts_again_although_it_ends_with_0() -> None:
    before = started_at("dgxspark-vllm.service")
    on("spark-worker", "sh", "-c", f"pkill -KILL -f '^{RANK}'")
    wait_until(lambda: started_at("dgxspark-vllm.service") != before, 180)
    wait_until(answers, SERVES_AGAIN_WITHIN_SECONDS)


def test_a_rank_that_hangs_is_noticed_by_the_canary() -> None:
    frozen = signalled("spark-worker", "STOP", RANK)
    seen = assert_the_canary_restarts_the_engine(frozen, SERVES_AGAIN_WITHIN_SECONDS)
    assert seen == ["200", "200"]


@contextmanager
def killed_as_by_a_loss_of_power() -> Iterator[None]:
    """The worker's rank is gone, and no word of it reaches the head: Ray believes in it for a minute more."""
    for rail in FABRIC:
        on("spark-worker", "ip", "link", "set", rail, "down")
    try:
        with signalled("spark-worker", "KILL", RANK):
            wait_until(lambda: not on("spark-worker", "pgrep", "-f", f"^{RANK}", check=False), 10)
            yield
    finally:
        for rail in FABRIC:
            on("spark-worker", "ip", "link", "set", rail, "up")


def test_a_rank_that_is_killed_while_the_engine_says_200_is_noticed_by_the_canary() -> None:
    seen = assert_the_canary_restarts_the_engine(killed_as_by_a_loss_of_power(), SERVES_AGAIN_WITHIN_SECONDS)
    assert seen == ["200", "200"]


@pytest.mark.parametrize("order", [("spark-worker", "spark-head"), ("spark-head", "spark-worker")])
def test_both_hosts_reboot_and_serve_again(order: tuple[str, str]) -> None:
    reboot_both(order, SERVES_AGAIN_WITHIN_SECONDS)


@contextmanager
def without_fabric_address(host: str) -> Iterator[str]:
    """As at the boot of a head whose cabled peer has no power yet; the address."""
    address = on(host, "ip", "-oneline", "-4", "address", "show", "dev", FABRIC[0]).split()[3]
    on(host, "ip", "address", "del", address, "dev", FABRIC[0])
    try:
        yield address.partition("/")[0]
    finally:
        on(host, "ip", "address", "add", address, "dev", FABRIC[0])


def test_ray_waits_for_its_address_and_brings_its_table_back() -> None:
    """A start of nftables has taken the table away, and no unit has noticed."""
    on("spark-head", "systemctl", "stop", "dgxspark-ray.service")
    on("spark-head", "nft", "delete", "table", "inet", "dgxspark")
    with without_fabric_address("spark-head") as address:
        on("spark-head", "systemctl", "start", "--no-block", "dgxspark-ray.service")
        # Longer than Ray's pause between two starts.
        time.sleep(15)
        shown = ["systemctl", "show", "-p", "ActiveState,SubState,NRestarts", "--value", "dgxspark-ray.service"]
        assert on("spark-head", *shown).split() == ["0", "activating", "start-pre"]
        journal = on("spark-head", "journalctl", "-u", "dgxspark-ray", "--no-pager", "--output=cat", "-n", "5")
        assert f"waiting for address {address} of this host" in journal
        assert ask_the_canary() == "starting"
        assert unit_state("spark-head", "dgxspark-vllm.service") == "inactive"
    wait_until(answers, SERVES_AGAIN_WITHIN_SECONDS)
    assert "tcp dport @closed drop" in on("spark-head", "nft", "list", "table", "inet", "dgxspark")


def test_memory_that_falls_below_the_floor_ends_the_engine_and_not_the_host() -> None:
    # A stand-in that takes all but 2 GiB of the simulated memory.
    meminfo = on("spark-head", "cat", "/proc/meminfo")
    available = next(int(line.split()[1]) for line in meminfo.splitlines() if line.startswith("MemAvailable"))
    mib = available // 1024 - 2048
    glutton = subprocess.Popen(["docker", "exec", "-e", f"LAB_GPU_MIB={mib}", "spark-head", "sleep", "777"])
    try:
        seconds = wait_until(
            lambda: "dgxspark-vllm" not in on("spark-head", "docker", "ps", "--format", "{{.Names}}"), 20
        )
        print(f"the engine was gone after {seconds:.1f} s")
        assert (
            "lab-head"
            in subprocess.run(
                ["ansible", "lab-head", "-i", "inventories/lab_inventory", "-m", "ping"],
                capture_output=True,
                text=True,
                check=True,
                cwd=CHECKOUT,
            ).stdout
        )
        journal = on("spark-head", "journalctl", "-u", "dgxspark-memguard", "--no-pager", "-n", "5")
        assert "killed dgxspark-vllm" in journal
    finally:
        on("spark-head", "pkill", "-f", "sleep 777", check=False)
        glutton.wait(timeout=30)
    wait_until(answers, SERVES_AGAIN_WITHIN_SECONDS)


def test_the_ladder_on_vllm_s_own_refusal() -> None:
    """3.2 MB of KV cache hold three blocks of the attention layer beside the states of the other layers: 3456 tokens.

    As large as the states are in float32, which vLLM takes by itself on CPUs with AVX-512 BF16 only.
    """
    lab("mutation", "faulty")
    candidates = [{"image": "vllm-node:faulty", "engine": "vllm", "local": True}]
    asked = {
        "spark_max_model_len": 4096,
        "spark_engine_arguments": ["--kv-cache-memory-bytes", "3200000", "--mamba-ssm-cache-dtype", "float32"],
        "spark_candidates": candidates,
        "ray_cluster_environment": {"LAB_FAULT": "small-cache"},
    }
    run = run_playbook("-e", json.dumps(asked))
    assert run.returncode == 0, run.output[-3000:]
    assert run.output.count("ladder, rung ") == 1
    assert "ladder        rung 1: max_model_len 4096 to 3456: the longest that fits, as the engine says" in run.output
    assert '"--max-model-len" "3456"' in on("spark-head", "cat", "/etc/systemd/system/dgxspark-vllm.service")
    # What worked is remembered: the next run begins with it.
    again = run_playbook("-e", json.dumps(asked))
    assert set(again.changed.values()) == {0} and "ladder, rung" not in again.output


def test_a_stop_leaves_no_process_behind() -> None:
    on("spark-head", "systemctl", "stop", "dgxspark-vllm.service", "dgxspark-ray.service")
    on("spark-worker", "systemctl", "stop", "dgxspark-ray.service")
    time.sleep(5)
    for host in HOSTS:
        assert engine_processes(host) == ""
        assert unit_state(host, "dgxspark-ray.service") == "inactive"
