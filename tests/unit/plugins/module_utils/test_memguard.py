# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The memory guard with a file for /proc/meminfo, a socket for the Docker Engine, and real processes as victims."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _memguard as memguard
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_verdict import diagnose
from ansible_collections.dgxspark.serving.plugins.module_utils._host_program import program

GIB_KIB = 1024**2


def meminfo(available_gib: float, cma_free: int = 0, cma_total: int = 0) -> str:
    lines = {"MemTotal": 120 * GIB_KIB, "MemFree": 1024, "MemAvailable": int(available_gib * GIB_KIB)}
    lines |= {"CmaTotal": cma_total, "CmaFree": cma_free}
    return "".join(f"{name + ':':<16}{value:>10} kB\n" for name, value in lines.items())


def replace(path: Path, text: str) -> None:
    """As the kernel: the file that is open changes, and is never seen empty."""
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, text.encode(), 0)
    os.close(descriptor)


class FakeDocker(socketserver.ThreadingUnixStreamServer):
    """hangs: it takes a kill and answers nothing, as an engine does on a host without memory."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        self.containers: dict[str, dict[str, Any]] = {}
        self.killed: list[str] = []
        self.hangs = False
        super().__init__(path, _Handler)

    def add(self, identity: str, role: str, pid: int) -> None:
        self.containers[identity] = {"name": f"dgxspark-{role}", "role": role, "pid": pid}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FakeDocker

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_arguments: object) -> None:
        pass

    def _answer(self, status: int, body: Any = None) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        known = self.server.containers
        if self.path.startswith("/containers/json?filters="):
            labels = {"io.dgxspark.serving.managed": "true"}
            self._answer(
                200,
                [
                    {"Id": name, "Labels": {**labels, "io.dgxspark.serving.role": entry["role"]}}
                    for name, entry in known.items()
                ],
            )
        else:
            entry = known[self.path.split("/")[2]]
            self._answer(200, {"Name": f"/{entry['name']}", "State": {"Pid": entry["pid"]}})

    def do_POST(self) -> None:
        identity = self.path.split("/")[2]
        self.server.killed.append(identity)
        if self.server.hangs:
            time.sleep(2)
            return
        os.kill(self.server.containers[identity]["pid"], signal.SIGKILL)
        self._answer(204)


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeDocker]:
    server = FakeDocker(str(tmp_path / "docker.sock"))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def victims() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes with a child each."""
    command = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"
    started = [subprocess.Popen([sys.executable, "-c", command], start_new_session=True) for _number in range(2)]
    until = time.monotonic() + 10
    while time.monotonic() < until and any(len(memguard.descendants(process.pid)) < 2 for process in started):
        time.sleep(0.02)
    yield started
    for process in started:
        for pid in memguard.descendants(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()


def guard_of(docker: FakeDocker, said: list[str], **settings: Any) -> memguard.Guard:
    guard = memguard.Guard(memguard.Engine(str(docker.server_address)), memguard.Settings(**settings), said.append)
    guard.refresh()
    return guard


LOW, ENOUGH = memguard.parse_reading(meminfo(3.5)), memguard.parse_reading(meminfo(20))


def test_readings():
    assert memguard.parse_reading(meminfo(8)).usable_mib == 8192
    # Pages of the CMA serve neither the driver nor the kernel.
    assert memguard.parse_reading(meminfo(8, cma_free=98304, cma_total=131072)).usable_mib == 8192 - 96
    broken = memguard.parse_reading(meminfo(8, cma_free=940604, cma_total=0))
    assert broken.broken_cma and broken.usable_mib == 8192
    with pytest.raises(ValueError):
        memguard.parse_reading("")


def test_one_low_reading_is_not_enough(docker, victims):
    docker.add("e1", "engine", victims[0].pid)
    said: list[str] = []
    guard = guard_of(docker, said)
    assert guard.take(LOW) is None and guard.take(ENOUGH) is None and guard.take(LOW) is None
    assert not docker.killed and not said


def test_the_engine_goes_first_and_then_ray(docker, victims, monkeypatch):
    monkeypatch.setattr(memguard, "NEXT_VICTIM_SECONDS", 0.2)
    docker.add("r1", "head", victims[0].pid)
    docker.add("e1", "engine", victims[1].pid)
    said: list[str] = []
    guard = guard_of(docker, said)
    guard.take(LOW)
    victim = guard.take(LOW)
    assert victim is not None and victim.role == "engine" and docker.killed == ["e1"]
    assert victims[1].wait(timeout=2) == -signal.SIGKILL
    # Memory gets a moment to come back.
    assert guard.take(LOW) is None and victims[0].poll() is None
    time.sleep(0.25)
    guard.take(LOW)
    assert docker.killed == ["e1", "r1"] and len(said) == 2
    assert guard.take(ENOUGH) is None and not guard.ended


def test_processes_are_ended_directly_when_docker_hangs(docker, victims):
    docker.add("e1", "engine", victims[0].pid)
    docker.hangs = True
    said: list[str] = []
    guard = guard_of(docker, said)
    family = memguard.descendants(victims[0].pid)
    started = time.monotonic()
    guard.take(LOW)
    guard.take(LOW)
    assert victims[0].wait(timeout=1) == -signal.SIGKILL
    assert time.monotonic() - started < 1
    time.sleep(0.1)
    assert len(family) == 2 and all(not memguard.start_ticks(pid) for pid in family)
    # Not a control group that others share.
    assert victims[1].poll() is None


def test_a_pid_that_is_used_again_is_no_victim(docker, victims):
    docker.add("e1", "engine", victims[0].pid)
    docker.hangs = True
    guard = guard_of(docker, [])
    (known,) = guard.victims
    memguard.end_directly(memguard.Victim(known.id, known.name, known.role, known.pid, known.started + 1))
    assert victims[0].poll() is None


def test_without_a_container_of_ours_it_says_so_once(docker):
    said: list[str] = []
    guard = guard_of(docker, said)
    for _number in range(5):
        guard.take(LOW)
    assert len(said) == 1 and "something else holds the memory" in said[0]


def test_the_program_ends_the_engine_within_a_second(docker, victims, tmp_path):
    docker.add("e1", "engine", victims[0].pid)
    figures = tmp_path / "meminfo"
    figures.write_text(meminfo(20), encoding="ascii")
    archive = tmp_path / "dgxspark-memguard.pyz"
    archive.write_bytes(program(memguard))
    command = [
        sys.executable,
        "-I",
        str(archive),
        "--meminfo",
        str(figures),
        "--docker-socket",
        str(docker.server_address),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        while "watching" not in running.stdout.readline():
            assert running.poll() is None
        replace(figures, meminfo(3.9))
        started = time.monotonic()
        assert victims[0].wait(timeout=5) == -signal.SIGKILL
        assert time.monotonic() - started < 1
        line = running.stdout.readline()
        running.terminate()
        assert running.wait(timeout=5) == 0
    journal = f"Nov 30 13:00:00 spark-a dgxspark-memguard[77]: {line}"
    cause = diagnose([journal]).cause
    assert cause is not None
    assert (cause.id, cause.host) == ("ENGINE.KILLED_BY_MEMGUARD", "spark-a")
    assert cause.numbers == {"victim": "dgxspark-engine", "role": "engine", "available_mib": 3993, "floor_mib": 4096}
    assert re.search(r"\(2 readings\)$", line.strip())
