"""After the deployment: boot order, dead ranks, short memory, closed ports (make test-full PART=serving)."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from conftest import CHECKOUT, answers, lab, on, run_playbook, unit_state, wait_until

HOSTS = ("spark-head", "spark-worker")
# Two starts of Ray and of the engine on two cores.
SERVES_AGAIN_WITHIN_SECONDS = 420


@pytest.fixture(scope="module", autouse=True)
def deployment() -> None:
    lab("reset")
    run = run_playbook()
    assert run.returncode == 0, run.output[-3000:]


def started_at(unit: str) -> str:
    return on("spark-head", "systemctl", "show", "-p", "ActiveEnterTimestamp", "--value", unit).strip()


def engine_processes(host: str) -> str:
    return on(host, "pgrep", "-af", "^(VLLM::|ray::|.*vllm serve|.*raylet)", check=False)


def test_every_port_but_ssh_and_the_api_is_silent_for_the_management_network() -> None:
    listening = on("spark-head", "sh", "-c", "ss -ltnH | awk '{print $4}'").split()
    ports = sorted({int(address.rsplit(":", 1)[1]) for address in listening if not address.startswith("127.")})
    assert {6379, 8000} <= set(ports)
    answers_of = {port: lab("probe", str(port)).strip().splitlines()[-1] for port in ports if port != 22}
    assert answers_of.pop(8000) == "open"
    assert set(answers_of.values()) <= {"filtered", "closed"}, answers_of


def test_the_canary_says_ok() -> None:
    on("spark-head", "systemctl", "start", "dgxspark-canary.service")
    state = json.loads(on("spark-head", "cat", "/var/lib/dgxspark/state/canary.json"))
    assert state["state"] == "ok"


def test_a_killed_engine_starts_again_although_it_ends_with_0() -> None:
    before = started_at("dgxspark-vllm.service")
    on("spark-worker", "sh", "-c", "pkill -KILL -f '^ray::RayWorkerProc'")
    wait_until(lambda: started_at("dgxspark-vllm.service") != before, 180)
    wait_until(answers, SERVES_AGAIN_WITHIN_SECONDS)


@pytest.mark.parametrize("order", [("spark-worker", "spark-head"), ("spark-head", "spark-worker")])
def test_both_hosts_reboot_and_serve_again(order: tuple[str, str]) -> None:
    for host in order:
        subprocess.run(["docker", "stop", "-t", "90", host], check=True, stdout=subprocess.DEVNULL)
    for host in order:
        subprocess.run(["docker", "start", host], check=True, stdout=subprocess.DEVNULL)
        # The second host is still off when the first is up.
        time.sleep(15)
    seconds = wait_until(answers, SERVES_AGAIN_WITHIN_SECONDS)
    print(f"serving again {seconds:.0f} s after the second host was started")


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


def test_a_stop_leaves_no_process_behind() -> None:
    on("spark-head", "systemctl", "stop", "dgxspark-vllm.service", "dgxspark-ray.service")
    on("spark-worker", "systemctl", "stop", "dgxspark-ray.service")
    time.sleep(5)
    for host in HOSTS:
        assert engine_processes(host) == ""
        assert unit_state(host, "dgxspark-ray.service") == "inactive"
