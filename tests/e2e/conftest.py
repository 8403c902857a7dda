"""Deployments on the lab (docs/lab.md), with the commands that a user types. Needs the lab to be up."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
INVENTORY = "inventories/lab_inventory"
# A deployment of the lab takes about two minutes; one that hangs must not take CI with it.
PLAYBOOK_TIMEOUT_SECONDS = 900

CANARY_STATE = "/var/lib/dgxspark/state/canary.json"

# What a run prints when the engine's unit has just been started. Its phases are no such sign: a busy machine passes over some.
ENGINE_STARTS = "TASK [dgxspark.serving.vllm_serve : Wait until the engine answers]"

_RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """A finished ansible-playbook. changed: by host."""

    returncode: int
    output: str

    @property
    def changed(self) -> dict[str, int]:
        return {found[0]: int(found[2]) for found in _RECAP.findall(self.output)}

    @property
    def gates(self) -> list[str]:
        """Numbers of the gates that were entered, in order."""
        return re.findall(r"^== Gate (\S+):", self.output, re.MULTILINE)

    @property
    def calls(self) -> dict[str, list[str]]:
        """The tasks that asked a host over SSH, once for each time, by host. Of a run with -vvv; waits ask as long as they last."""
        found: dict[str, list[str]] = {}
        task = ""
        for line in self.output.splitlines():
            if line.startswith("TASK ["):
                task = line.partition("[")[2].rpartition("]")[0].rpartition(" : ")[2]
            elif (asked := re.match(r"<(\S+)> SSH: EXEC ", line)) and not task.startswith("Wait until"):
                found.setdefault(asked[1], []).append(task)
        return found

    def assert_stopped_at(self, gate: str) -> None:
        assert self.returncode != 0, self.output[-3000:]
        assert self.gates[-1] == gate, self.output[-3000:]


def playbook_command(*arguments: str, playbook: str = "deploy_qwen35.yml", inventory: str = INVENTORY) -> list[str]:
    return ["ansible-playbook", playbook, "-i", inventory, *arguments]


def run_playbook(*arguments: str, playbook: str = "deploy_qwen35.yml", inventory: str = INVENTORY) -> Run:
    done = subprocess.run(
        playbook_command(*arguments, playbook=playbook, inventory=inventory),
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PLAYBOOK_TIMEOUT_SECONDS,
        check=False,
    )
    print(done.stdout)
    return Run(done.returncode, done.stdout)


class Deployment:
    """A deployment that runs while something happens."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            playbook_command(*arguments),
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def until(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if words in line:
                return
        raise AssertionError(f"{words!r} never came: {''.join(self.lines)[-3000:]}")

    def end(self) -> Run:
        assert self.process.stdout is not None
        self.lines += list(self.process.stdout)
        print("".join(self.lines))
        return Run(self.process.wait(), "".join(self.lines))

    def kill(self) -> None:
        """As a closed lid: nothing more comes from the control node, not even over connections that were open."""
        self.process.send_signal(signal.SIGKILL)
        subprocess.run(["pkill", "-KILL", "-s", str(self.process.pid)], check=False)
        subprocess.run(["pkill", "-KILL", "-f", r"^ssh: .*\[mux\]"], check=False)
        self.process.wait()


def lab(*arguments: str) -> str:
    """A command of the lab, for example lab("reset")."""
    return subprocess.run(
        [sys.executable, "tests/lab/lab.py", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout


def on(host: str, *command: str, check: bool = True) -> str:
    """Run a command as root of a lab host, not through Ansible: a second witness of what is true there."""
    done = subprocess.run(["docker", "exec", host, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{command} on {host}: {done.stderr}"
    return done.stdout


def containers(host: str) -> dict[str, dict[str, Any]]:
    """The running containers of a lab host by name, as docker inspect prints them. It passes over one that has just gone."""
    ids = on(host, "docker", "ps", "--quiet").split()
    found = json.loads(on(host, "docker", "inspect", *ids, check=False)) if ids else []
    return {item["Name"].lstrip("/"): item for item in found}


def identity(host: str, name: str) -> tuple[str, str]:
    """(id, start time) of a running container: equal before and after means that nobody touched it."""
    item = containers(host)[name]
    return item["Id"], item["State"]["StartedAt"]


def unit_state(host: str, unit: str) -> str:
    return on(host, "systemctl", "is-active", unit, check=False).strip()


def what_ran_before_runs() -> dict[str, str]:
    """The services of the lab's start state that are not running; empty when all do."""
    down = {}
    for unit in ("vllm-cluster.service", "vllm-proxy.service"):
        if unit_state("spark-head", unit) != "active":
            down[unit] = unit_state("spark-head", unit)
        enabled = on("spark-head", "systemctl", "is-enabled", unit, check=False).strip()
        if enabled != "enabled":
            down[f"{unit} at boot"] = enabled
    for host, names in (("spark-head", ("glm", "reranker")), ("spark-worker", ("embeddings", "reranker"))):
        for name in names:
            item = containers(host).get(name)
            if item is None:
                down[f"{host} {name}"] = "not running"
            elif name != "glm" and item["HostConfig"]["RestartPolicy"]["Name"] != "unless-stopped":
                down[f"{host} {name} policy"] = item["HostConfig"]["RestartPolicy"]["Name"]
    for host, port, answer in (
        ("spark-head", 8000, "glm"),
        ("spark-head", 8080, "vllm-proxy"),
        ("spark-head", 8102, "reranker"),
    ):
        if answer not in on(host, "curl", "-s", "--max-time", "5", f"http://127.0.0.1:{port}/", check=False):
            down[f"{host} port {port}"] = f"does not answer as {answer}"
    return down


def nothing_of_ours_runs() -> list[str]:
    left = []
    for host in ("spark-head", "spark-worker"):
        left += [f"{host} {name}" for name in containers(host) if name.startswith("dgxspark")]
        left += [
            f"{host} {unit}"
            for unit in ("dgxspark-ray.service", "dgxspark-vllm.service")
            if unit_state(host, unit) in ("active", "activating")
        ]
    return left


def answers() -> bool:
    """Whether the lab's model gives its right answer on the head, with the key that lies there."""
    request = {"model": "qwen35", "temperature": 0, "max_tokens": 64}
    body = json.dumps({**request, "messages": [{"role": "user", "content": "What is 2+2?"}]})
    script = (
        "curl -s --max-time 60 -H 'Content-Type: application/json' -H \"Authorization: Bearer $(cat /etc/dgxspark/api-key)\" "
        f"-d '{body}' http://127.0.0.1:8000/v1/chat/completions"
    )
    return "2 + 2 = 4." in on("spark-head", "sh", "-c", script, check=False)


def wait_until(what: Callable[[], bool], seconds: float) -> float:
    """Seconds that it took."""
    started = time.monotonic()
    while not what():
        assert time.monotonic() - started < seconds, f"not within {seconds} s"
        time.sleep(1)
    return time.monotonic() - started


def health() -> str:
    """Status of the engine's own health page on the head; 000 when nothing listens."""
    return on(
        "spark-head", "sh", "-c", "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/health", check=False
    )


def ask_the_canary() -> str:
    """The state that it comes to."""
    on("spark-head", "systemctl", "start", "dgxspark-canary.service", check=False)
    return str(json.loads(on("spark-head", "cat", CANARY_STATE))["state"])


def assert_the_canary_restarts_the_engine(harm: AbstractContextManager[object], limit_seconds: float) -> list[str]:
    """harm: what makes the engine useless without its own health page knowing it; it is mended before the engine must be back.

    Returns what the health page said before each of the canary's two questions.
    """
    # A restart of an earlier test would count for a day.
    on("spark-head", "rm", "-f", CANARY_STATE)
    # The canary leaves an engine alone that has not answered since its start.
    assert ask_the_canary() == "ok"
    before = containers("spark-head")["dgxspark-vllm"]["Id"]
    seen = []
    with harm:
        for state in ("failing", "restarted"):
            seen.append(health())
            assert ask_the_canary() == state
    assert seen[0] == "200"
    wait_until(lambda: containers("spark-head").get("dgxspark-vllm", {}).get("Id") not in (None, before), limit_seconds)
    wait_until(answers, limit_seconds)
    return seen


@contextmanager
def signalled(host: str, signal_name: str, program: str) -> Iterator[None]:
    """program: how a command line begins. Frozen ones are not let go: whoever restarts the engine must end them."""
    on(host, "pkill", f"-{signal_name}", "-f", f"^{program}")
    yield


def listening_ports(host: str) -> list[int]:
    """Ports on which a host listens for other hosts."""
    addresses = on(host, "sh", "-c", "ss -ltnH | awk '{print $4}'").split()
    return sorted({int(address.rsplit(":", 1)[1]) for address in addresses if not address.startswith("127.")})


def assert_only_ssh_and_the_api_answer(expected: set[int]) -> None:
    """From the management network. expected: ports on which the head must listen, or nothing is shown."""
    ports = listening_ports("spark-head")
    assert {8000, *expected} <= set(ports)
    seen = {port: lab("probe", str(port)).strip().splitlines()[-1] for port in ports if port != 22}
    assert seen.pop(8000) == "open"
    assert set(seen.values()) <= {"filtered", "closed"}, seen


@contextmanager
def docker_fails_once(host: str) -> Iterator[None]:
    """The host's Docker Engine fails its first start after the next boot, and is started again by systemd."""
    folder, failed = "/etc/systemd/system/docker.service.d", "/run/docker-failed-once"
    unit = f"[Service]\nExecStartPre=/bin/sh -c 'test -e {failed} || {{ touch {failed}; exit 1; }}'\n"
    on(host, "mkdir", "-p", folder)
    on(host, "sh", "-c", f'printf %s "$1" > {folder}/fails-once.conf', "sh", unit)
    try:
        yield
        on(host, "test", "-e", failed)
    finally:
        on(host, "rm", "-r", folder)
        on(host, "systemctl", "daemon-reload")


def reboot_both(order: tuple[str, str], limit_seconds: float) -> None:
    """Stop both hosts, start them one after the other, and wait until the model answers again. The second one has trouble with Docker."""
    with docker_fails_once(order[1]):
        for host in order:
            subprocess.run(["docker", "stop", "-t", "90", host], check=True, stdout=subprocess.DEVNULL)
        for host in order:
            subprocess.run(["docker", "start", host], check=True, stdout=subprocess.DEVNULL)
            # The second host is still off when the first is up.
            time.sleep(15)
        seconds = wait_until(answers, limit_seconds)
    print(f"serving again {seconds:.0f} s after the second host was started")


@pytest.fixture
def mutated_model() -> Callable[[str], str]:
    """Puts a faulty model on the head and returns its folder: wrong-answer, no-reasoning."""

    def make(kind: str) -> str:
        return lab("mutation", kind).strip().splitlines()[-1]

    return make
