"""playbooks/preflight.yml finds each fault of docs/lab.md, all of them in one report, and changes nothing (PART=preflight)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest
from conftest import Run, containers, lab, on, run_playbook, wait_until, what_ran_before_runs

HEAD, WORKER = "spark-head", "spark-worker"
RAIL_1, RAIL_2 = "enp1s0f0np0", "enP2p1s0f0np0"
MARKER = "/run/preflight-test"
# What sudo leaves in a home at its first use.
SUDO_NOTE = ".sudo_as_admin_successful"
# Where a host keeps what somebody set up. sudo and sshd write below /run and /var/log.
LASTING = ("/etc", "/opt", "/root", "/srv", "/usr", "/var/lib/dgxspark", "/home")


@pytest.fixture(scope="module", autouse=True)
def fresh_lab() -> Iterator[None]:
    lab("reset")
    yield
    lab("reset")


@pytest.fixture(autouse=True)
def untouched_services() -> Iterator[None]:
    yield
    assert what_ran_before_runs() == {}


def preflight(*arguments: str) -> Run:
    run = run_playbook(*arguments, playbook="playbooks/preflight.yml")
    assert run.gates == ["0", "1", "2"], run.output[-3000:]
    assert set(run.changed.values()) == {0}
    return run


def words(run: Run) -> str:
    return " ".join(run.output.split())


def report(run: Run) -> str:
    """The one report with which the run ended. Ansible prints it twice, as an error and as the result of its task."""
    assert run.returncode != 0, run.output[-3000:]
    assert run.output.count("failed=1 ") == 1, run.output[-3000:]
    return " ".join(run.output.split("Gate 2 (preflight) found")[-1].split())


@contextmanager
def changed(host: str, *command: str, undo: list[str]) -> Iterator[None]:
    on(host, *command)
    try:
        yield
    finally:
        on(host, *undo, check=False)


@contextmanager
def stranger(host: str, *command: str) -> Iterator[None]:
    """A process of somebody for the time of a test; the last word of the command is found nowhere else."""
    process = subprocess.Popen(["docker", "exec", host, *command])
    try:
        yield
    finally:
        on(host, "pkill", "-f", command[-1].split()[-1], check=False)
        process.wait(timeout=30)


def wrong_mtu() -> AbstractContextManager[None]:
    # A connection from before would go on with packets of the larger MTU, and break; a new one asks both ends.
    subprocess.run(["pkill", "-f", r"^ssh: .*\[mux\]"], check=False)
    return changed(
        WORKER, "ip", "link", "set", RAIL_1, "mtu", "1500", undo=["ip", "link", "set", RAIL_1, "mtu", "9000"]
    )


def rail_down() -> AbstractContextManager[None]:
    return changed(WORKER, "ip", "link", "set", RAIL_2, "down", undo=["ip", "link", "set", RAIL_2, "up"])


def missing_gid() -> AbstractContextManager[None]:
    back = ["ip", "addr", "add", "192.168.241.12/24", "dev", RAIL_2]
    return changed(HEAD, "ip", "addr", "flush", "dev", RAIL_2, undo=back)


def occupied_port() -> AbstractContextManager[None]:
    return stranger(HEAD, "python3", "-m", "http.server", "--bind", "0.0.0.0", "20101")


def full_model_disk() -> AbstractContextManager[None]:
    fill = "dd if=/dev/zero of=/srv/models/fill bs=1M 2>/dev/null || true"
    return changed(WORKER, "sh", "-c", fill, undo=["rm", "-f", "/srv/models/fill"])


def full_docker_disk() -> AbstractContextManager[None]:
    fill = "fallocate -l $(($(df -B1 --output=avail /var/lib/docker | tail -1) - 100000000)) /var/lib/docker/fill"
    return changed(WORKER, "sh", "-c", fill, undo=["rm", "-f", "/var/lib/docker/fill"])


def orphan() -> AbstractContextManager[None]:
    return stranger(HEAD, "env", "LAB_GPU_MIB=5000", "bash", "-c", "exec -a VLLM::EngineCore sleep 986")


def unlisted_holder() -> AbstractContextManager[None]:
    return stranger(WORKER, "env", "LAB_GPU_MIB=6000", "sleep", "985")


def full_page_cache() -> AbstractContextManager[None]:
    fill = "echo 60000 > /run/lab/page_cache_mib; sleep 1"
    return changed(WORKER, "sh", "-c", fill, undo=["sh", "-c", "echo 2600 > /run/lab/page_cache_mib; sleep 1"])


def blocked_port() -> AbstractContextManager[None]:
    rule = ["INPUT", "-p", "tcp", "--dport", "6379", "-s", "192.168.240.13", "-j", "DROP"]
    return changed(HEAD, "iptables", "-I", *rule, undo=["iptables", "-D", *rule])


FAULTS = {
    "wrong MTU on one side": (
        wrong_mtu,
        [
            "rail 1: Its ends have different MTUs: lab-head enp1s0f0np0 9000, lab-worker enp1s0f0np0 1500",
            "[FABRIC.PEER_MTU]",
        ],
    ),
    "rail down": (
        rail_down,
        [
            "lab-worker fabric: 2 rails are planned, 1 can be used: rocep1s0f0.",
            "lab-worker: 192.168.241.13 is planned for lab-worker",
        ],
    ),
    "missing GID": (missing_gid, ["error: lab-head roceP2p1s0f0: Its link is up, but it cannot be used"]),
    "occupied port": (occupied_port, ["lab-head: port 20101 is held by process http.server"]),
    "full model disk": (full_model_disk, ["lab-worker: /srv/models/qwen35-tiny (model) needs"]),
    "full Docker disk": (full_docker_disk, ["lab-worker: /var/lib/docker (docker) has 0.1 GiB free of"]),
    "orphan process": (
        orphan,
        ["VLLM::EngineCore of root is what remains of an engine whose server is gone", "[MEMORY.ORPHAN_ENGINE]"],
    ),
    "unlisted holder": (unlisted_holder, ["lab-worker: 5.9 GiB of GPU memory is held by process sleep"]),
    "blocked fabric port": (
        blocked_port,
        [
            "Connections from lab-worker to TCP port 6379 of lab-head got no answer",
            "--dport 6379 -j DROP",
        ],
    ),
}


def test_healthy_hosts_have_no_error_and_nothing_is_changed() -> None:
    before = {host: {name: item["Id"] for name, item in containers(host).items()} for host in (HEAD, WORKER)}
    for host in (HEAD, WORKER):
        on(host, "touch", MARKER)
    run = preflight()
    assert run.returncode == 0, run.output[-3000:]
    assert "2 host(s) looked at: no error" in run.output
    for host in (HEAD, WORKER):
        places = on(host, "sh", "-c", f"ls -d {' '.join(LASTING)} 2>/dev/null", check=False).split()
        assert on(host, "find", *places, "-xdev", "-newer", MARKER, "-type", "f", "-not", "-name", SUDO_NOTE) == ""
        assert {name: item["Id"] for name, item in containers(host).items()} == before[host]


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str) -> None:
    make, expected = FAULTS[name]
    with make():
        said = report(preflight())
    for text in expected:
        assert text in said, said


def test_full_page_cache_is_found_and_is_no_error() -> None:
    with full_page_cache():
        run = preflight()
    assert run.returncode == 0, run.output[-3000:]
    assert "warning: lab-worker: The engine will want" in words(run)
    assert "[MEMORY.PAGE_CACHE]" in words(run)


def test_all_faults_together_are_in_one_report() -> None:
    with ExitStack() as stack:
        for make, _expected in FAULTS.values():
            stack.enter_context(make())
        stack.enter_context(full_page_cache())
        said = report(preflight())
    for name, (_make, expected) in FAULTS.items():
        for text in expected:
            assert text in said, f"{name}: {said}"
    assert "lab-worker: The engine will want" in said


def test_unprivileged_user_is_told_what_could_not_be_seen() -> None:
    run = preflight("-e", "ansible_become_password=")
    assert run.returncode == 0, run.output[-3000:]
    for host in ("lab-head", "lab-worker"):
        assert (
            f"warning: {host}: Looked without root's rights; not seen: the Docker Engine and its containers"
            in words(run)
        )
    assert "whose name this user may not see" in words(run)
    # What needs no rights is seen all the same.
    with rail_down():
        assert "2 rails are planned, 1 can be used" in report(preflight("-e", "ansible_become_password="))


def test_wrong_sudo_password_is_an_error_and_everything_else_is_said_too() -> None:
    with rail_down():
        said = report(preflight("-e", "ansible_become_password=wrong"))
    assert "sudo on lab-head refuses" in said
    assert "2 rails are planned, 1 can be used" in said


def test_host_that_does_not_answer_does_not_hide_the_others() -> None:
    on(WORKER, "systemctl", "stop", "ssh.service", "ssh.socket", check=False)
    try:
        with blocked_port(), occupied_port():
            said = report(
                preflight("-e", "ansible_ssh_common_args='-F .lab/ssh_config -o ControlMaster=no -o ControlPath=none'")
            )
    finally:
        on(WORKER, "systemctl", "start", "ssh.service")
    assert "lab-worker cannot be reached over SSH" in said
    assert "lab-head: port 20101 is held by process http.server" in said


def test_earlyoom_is_warned_about_and_steered_with_consent() -> None:
    """Its dry run names what it would end: of a process that holds much and a rank that holds little, the rank."""
    setup = "playbooks/host_setup.yml"
    consent = ("-e", "spark_steer_earlyoom=true")
    assert run_playbook(playbook=setup).returncode == 0
    with changed(WORKER, "systemctl", "start", "earlyoom", undo=["systemctl", "stop", "earlyoom"]):
        assert "HOST.MEMORY_KILLER" in words(preflight())
        # It is installed on both; only where it runs it is started again.
        assert run_playbook(*consent, playbook=setup).changed == {"lab-head": 1, "lab-worker": 2}
        assert run_playbook(*consent, playbook=setup).changed == {"lab-head": 0, "lab-worker": 0}
        assert "HOST.MEMORY_KILLER" not in words(preflight())
        arguments = earlyoom_arguments()
        total = on(WORKER, "awk", "/^MemTotal/ {print $2}", "/proc/meminfo").strip()
        short = ["-s", "100", "-M", str(int(total) - 1024)]
        assert would_end(*short) != "ray::RayWorker"
        assert would_end(*arguments, *short) == "ray::RayWorker"
        assert run_playbook(playbook=setup).changed == {"lab-head": 1, "lab-worker": 2}
        assert "--avoid" not in earlyoom_arguments()


def earlyoom_arguments() -> list[str]:
    """Of the process that runs on the worker."""
    command = "tr '\\0' '\\n' </proc/$(systemctl show --property=MainPID --value earlyoom)/cmdline"
    return on(WORKER, "sh", "-c", command).splitlines()[1:]


def would_end(*arguments: str) -> str:
    """The process that earlyoom would end on the worker with these arguments, where a rank and somebody else's program run."""
    on(WORKER, "cp", "/bin/sleep", "/tmp/ray::RayWorker")
    holder = ["python3", "-c", "import time; held = bytearray(10**8); time.sleep(4243)  # holder-4243"]
    with stranger(WORKER, "/tmp/ray::RayWorker", "4242"), stranger(WORKER, *holder):
        wait_until(
            lambda: all(on(WORKER, "pgrep", "-f", word, check=False) for word in ("ker 4242", "holder-4243")), 30
        )
        dry = ["timeout", "2", "earlyoom", *arguments, "--dryrun"]
        said = on(WORKER, "sh", "-c", '"$@" 2>&1', "sh", *dry, check=False)
    found = re.search(r'sending SIGTERM to process \d+ uid \d+ "([^"]+)"', said)
    assert found, said
    return found[1]
