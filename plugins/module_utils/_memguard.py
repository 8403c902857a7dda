# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The host's memory guard: ends the engine before the kernel runs out of memory and the host freezes.

On unified memory a driver that gets no page hangs the host long before the kernel's own killer acts. This program reads
/proc/meminfo several times a second; below a hard floor it ends our containers, the engine first, and says so in one line that
engine_log_check knows. It asks nothing of the engine, needs no control node, and forks nothing when memory is short.

PRIVATE to this collection. Standard library only, it is a host program.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import start_ticks
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import MANAGED_LABEL, ROLE_LABEL

PROGRAM = "dgxspark-memguard"
GUARD_LINE = (
    "dgxspark-memguard: killed {victim} (role {role}): MemAvailable {available_mib} MiB is below the floor of {floor_mib} MiB "
    "({readings} readings)"
)

# Two deployers for this hardware that guard memory use 4 GiB as the hard floor (research: pulsar's HARD_FLOOR_AVAILABLE_GIB and
# bjk110's memory-guard.sh). On the way to a freeze a host lost 30 GiB in 17 s, 1.8 GiB a second: two readings take 0.4 of them.
FLOOR_MIB = 4096
INTERVAL_SECONDS = 0.2
READINGS = 2
# How long the Docker Engine may take to end a container before its processes are ended directly.
ANSWER_SECONDS = 0.3
# The engine's memory is held by ranks in Ray's container, which end with the engine. If memory is not back by then, Ray goes, too.
NEXT_VICTIM_SECONDS = 0.5
# Which containers there are is asked beforehand, not when memory is short.
REFRESH_SECONDS = 2.0
LIST_SECONDS = 5.0
# The stacks of threads are locked in memory, too.
_STACK_BYTES = 256 * 1024

# Roles in the order in which they are ended; a role that is not named comes last. Ray's containers have the host's role.
ROLES = ("engine", "ray", "worker", "head")

_MCL_CURRENT, _MCL_FUTURE = 1, 2
_MEMINFO_LINE = re.compile(r"^(MemAvailable|MemFree|CmaTotal|CmaFree):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Reading:
    """KiB. CMA pages count as available but serve only movable memory: the driver and the kernel cannot use them."""

    available: int
    cma_free: int = 0
    cma_total: int = 0

    @property
    def broken_cma(self) -> bool:
        """Kernels 7.0 without kho=off report more CMA free than there is."""
        return self.cma_free > self.cma_total

    @property
    def usable_mib(self) -> int:
        return max(0, self.available - min(self.cma_free, self.cma_total)) // 1024


def parse_reading(text: str) -> Reading:
    """Raises ValueError when it is not the text of C(/proc/meminfo)."""
    values = {name: int(value) for name, value in _MEMINFO_LINE.findall(text)}
    if "MemAvailable" not in values:
        raise ValueError("no MemAvailable in meminfo")
    return Reading(values["MemAvailable"], values.get("CmaFree", 0), values.get("CmaTotal", 0))


@dataclass(frozen=True)
class Victim:
    """A container of ours. started: ticks of the start of its main process, so that a pid that is used again is no victim."""

    id: str
    name: str
    role: str
    pid: int
    started: int

    @property
    def order(self) -> int:
        return ROLES.index(self.role) if self.role in ROLES else len(ROLES)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Engine:
    """The Docker Engine over its socket: no command is started for it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _ask(self, method: str, path: str, seconds: float) -> tuple[int, bytes]:
        connection = _SocketConnection(self._path, seconds)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _json(self, path: str) -> Any:
        status, body = self._ask("GET", path, LIST_SECONDS)
        if status != 200:
            raise OSError(f"the Docker Engine answered {status}")
        return json.loads(body)

    def victims(self) -> list[Victim]:
        """Our running containers, the first to end first. Raises OSError or ValueError when the engine does not answer."""
        wanted = urllib.parse.quote(json.dumps({"label": [MANAGED_LABEL], "status": ["running", "paused"]}))
        found = []
        for listed in self._json(f"/containers/json?filters={wanted}"):
            state = self._json(f"/containers/{listed['Id']}/json")
            pid = int(state["State"].get("Pid") or 0)
            if pid > 1:
                labels: Mapping[str, str] = listed.get("Labels") or {}
                name = str(state["Name"]).lstrip("/")
                found.append(Victim(listed["Id"], name, labels.get(ROLE_LABEL, ""), pid, start_ticks(pid)))
        return sorted(found, key=lambda victim: (victim.order, victim.name))

    def kill(self, victim: Victim) -> bool:
        """Whether the engine says in time that it has sent SIGKILL."""
        try:
            status, _body = self._ask("POST", f"/containers/{victim.id}/kill?signal=KILL", ANSWER_SECONDS)
        except (OSError, http.client.HTTPException):
            return False
        return status == 204


# Processes


def descendants(pid: int) -> list[int]:
    """The process and all below it, the process first."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as handle:
                    parent = int(handle.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            parents.setdefault(parent, []).append(int(entry))
    found = [pid]
    for known in found:
        found += parents.get(known, [])
    return found


def own_cgroup(victim: Victim, root: str = "/sys/fs/cgroup") -> str:
    """The folder of the container's own control group, or nothing: a group that others share must not be ended."""
    try:
        with open(f"/proc/{victim.pid}/cgroup", encoding="utf-8") as handle:
            path = handle.read().rpartition("::")[2].strip()
    except OSError:
        return ""
    return f"{root}{path}" if victim.id and victim.id in path else ""


def end_directly(victim: Victim) -> None:
    """Without the Docker Engine: all processes of the container get SIGKILL."""
    if start_ticks(victim.pid) != victim.started:
        return
    folder = own_cgroup(victim)
    if folder:
        with contextlib.suppress(OSError), open(f"{folder}/cgroup.kill", "w", encoding="ascii") as handle:
            handle.write("1")
            return
    for pid in descendants(victim.pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def is_gone(victim: Victim) -> bool:
    return start_ticks(victim.pid) != victim.started


# The watch


@dataclass
class Settings:
    floor_mib: int = FLOOR_MIB
    interval: float = INTERVAL_SECONDS
    readings: int = READINGS
    meminfo: str = "/proc/meminfo"


@dataclass
class Guard:
    """say: writes one line. below: how many readings in a row were below the floor; ended: ids that were ended in this shortage."""

    engine: Engine
    settings: Settings
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    victims: Sequence[Victim] = ()
    below: int = 0
    last_kill: float = float("-inf")
    ended: set[str] = field(default_factory=set)
    helpless: bool = False

    def refresh(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, http.client.HTTPException):
            self.victims = self.engine.victims()

    def take(self, reading: Reading) -> Victim | None:
        """One reading; ends at most one container. Returns it."""
        if reading.usable_mib >= self.settings.floor_mib:
            self.below, self.helpless = 0, False
            self.ended.clear()
            return None
        self.below += 1
        if self.below < self.settings.readings or self.clock() - self.last_kill < NEXT_VICTIM_SECONDS:
            return None
        victim = next((known for known in self.victims if known.id not in self.ended and not is_gone(known)), None)
        if victim is None:
            self._nobody(reading)
            return None
        self._end(victim, reading)
        return victim

    def _end(self, victim: Victim, reading: Reading) -> None:
        answered = self.engine.kill(victim)
        if not answered or not _soon_gone(victim):
            end_directly(victim)
        self.ended.add(victim.id)
        self.last_kill = self.clock()
        self.say(
            GUARD_LINE.format(
                victim=victim.name,
                role=victim.role or "unknown",
                available_mib=reading.usable_mib,
                floor_mib=self.settings.floor_mib,
                readings=self.below,
            )
        )

    def _nobody(self, reading: Reading) -> None:
        """Once in a shortage: the memory is held by somebody else."""
        if not self.helpless and not self.ended:
            self.helpless = True
            self.say(
                f"{PROGRAM}: MemAvailable {reading.usable_mib} MiB is below the floor of {self.settings.floor_mib} MiB, and no container "
                "of the deployment runs: something else holds the memory"
            )


def _soon_gone(victim: Victim) -> bool:
    until = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < until:
        if is_gone(victim):
            return True
        time.sleep(0.02)
    return False


def lock_memory() -> bool:
    """Whether the program can no longer be swapped out: it must run when nothing else does."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT | _MCL_FUTURE) == 0)
    except (OSError, AttributeError):
        return False


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _keep_refreshing(guard: Guard, ended: threading.Event) -> None:
    while not ended.wait(REFRESH_SECONDS):
        guard.refresh()


def watch(guard: Guard, ended: threading.Event) -> None:
    """Until the event is set. The file stays open: opening one can fail when memory is short."""
    descriptor = os.open(guard.settings.meminfo, os.O_RDONLY)
    broken_said = False
    try:
        while not ended.wait(guard.settings.interval):
            try:
                reading = parse_reading(os.pread(descriptor, 65536, 0).decode("ascii", "replace"))
            except (OSError, ValueError):
                # A stand-in for the file that is just being written; the next reading comes soon.
                continue
            if reading.broken_cma and not broken_said:
                broken_said = True
                guard.say(f"{PROGRAM}: the kernel reports CmaFree above CmaTotal: boot it with kho=off")
            guard.take(reading)
    finally:
        os.close(descriptor)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(PROGRAM, description="Ends the engine before the host runs out of memory.")
    parser.add_argument("--floor-mib", type=int, default=FLOOR_MIB)
    parser.add_argument("--interval", type=float, default=INTERVAL_SECONDS)
    parser.add_argument("--readings", type=int, default=READINGS)
    parser.add_argument("--meminfo", default="/proc/meminfo")
    parser.add_argument("--docker-socket", default="/var/run/docker.sock")
    options = parser.parse_args(list(argv))
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: ended.set())
    settings = Settings(options.floor_mib, options.interval, options.readings, options.meminfo)
    guard = Guard(Engine(options.docker_socket), settings, _say)
    guard.refresh()
    threading.stack_size(_STACK_BYTES)
    threading.Thread(target=_keep_refreshing, args=(guard, ended), daemon=True).start()
    if not lock_memory():
        _say(f"{PROGRAM}: cannot lock its memory, it may be swapped out")
    _say(f"{PROGRAM}: watching, floor {settings.floor_mib} MiB")
    watch(guard, ended)
    return 0
