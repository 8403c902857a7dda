# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes that no unit and no container stops: orphans of engines, and what the user named. Found and ended.

PRIVATE to this collection. Standard library only, it is part of a host program.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import (
    ProcessOwner,
    process_owner,
    running_pids,
    start_ticks,
)

# Titles that engines give to the processes which they start: VLLM::EngineCore, VLLM::Worker_TP0 (vLLM, set_process_title),
# ray::RayWorkerWrapper (Ray's workers), sglang::scheduler_TP0 (SGLang). The server that starts them has no such title.
_ENGINE_TITLE = re.compile(r"^(VLLM|ray|sglang)::", re.IGNORECASE)
# Who becomes the parent of a process whose own has ended: init, a service manager, the shim of a container, or the shell that
# started the server and is a subreaper or its last ancestor (an EngineCore below a login shell was seen on a Spark).
_ADOPTERS = frozenset(
    (
        *("systemd", "init", "docker-init", "tini", "dumb-init", "containerd-shim"),
        *("bash", "sh", "dash", "zsh", "fish", "screen", "tmux", "tmux: server", "sshd", "login", "su", "sudo"),
    )
)
# An engine that ends itself needs a few seconds to give its GPU memory back; vLLM waits 4 s for its own workers.
GRACE_SECONDS = 10
# After SIGKILL the kernel needs up to seconds to free tens of GiB; what lives longer hangs in the driver.
KILLED_WITHIN_SECONDS = 15

Processes = Mapping[int, ProcessOwner]


def processes(proc_root: str = "/proc") -> dict[int, ProcessOwner]:
    """Every process with a command, by pid. Kernel threads and zombies are left out."""
    found = {}
    for pid in running_pids(proc_root):
        owner = process_owner(pid, proc_root)
        if owner and owner.started and not (owner.parent_pid == 2 or pid == 2):
            found[pid] = owner
    return found


def is_engine_process(process: ProcessOwner) -> bool:
    return bool(_ENGINE_TITLE.match(process.command))


def has_lost_its_server(process: ProcessOwner, find: Callable[[int], ProcessOwner | None]) -> bool:
    """Whether the first ancestor of an engine's process that has no engine's title is nobody's server. find: process by pid."""
    seen = process
    while True:
        parent = find(seen.parent_pid)
        if parent is None or parent.pid == 1 or parent.name in _ADOPTERS or parent.name.startswith("containerd-shim"):
            return True
        if not is_engine_process(parent):
            return False
        seen = parent


def orphans(
    all_processes: Processes, alive_containers: Collection[str], running_units: Collection[str]
) -> list[ProcessOwner]:
    """Engine processes whose server is gone. What lives in a running container (full id) or unit belongs to that."""
    return [
        process
        for process in all_processes.values()
        if is_engine_process(process)
        and process.container_id not in alive_containers
        and process.systemd_unit not in running_units
        and has_lost_its_server(process, all_processes.get)
    ]


def _is_alive(process: ProcessOwner, proc_root: str) -> bool:
    """The same process, and not another that got its pid."""
    return start_ticks(process.pid, proc_root) == process.started


def still_alive(wanted: Iterable[ProcessOwner], proc_root: str = "/proc") -> list[ProcessOwner]:
    return [process for process in wanted if _is_alive(process, proc_root)]


def end_processes(
    wanted: Sequence[ProcessOwner],
    proc_root: str = "/proc",
    send: Callable[[int, int], None] = os.kill,
    sleep: Callable[[float], None] = time.sleep,
    grace_seconds: float = GRACE_SECONDS,
) -> list[ProcessOwner]:
    """SIGTERM, and after the grace time SIGKILL. Returns those that live on even so."""
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, KILLED_WITHIN_SECONDS)):
        left = still_alive(wanted, proc_root)
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                send(process.pid, number)
        waited = 0.0
        while left and waited < seconds:
            sleep(0.2)
            waited += 0.2
            left = still_alive(left, proc_root)
    return still_alive(wanted, proc_root)
