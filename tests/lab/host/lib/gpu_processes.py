"""Which live processes hold memory of the simulated GPU, and how much.

Two kinds count:
- a stand-in: a process with LAB_GPU_MIB in its environment, once per process tree and once per container (whatever
  `docker exec` adds to it);
- a rank of the real engine. setproctitle wipes its environment, so it is known by its title, and its size comes from
  /etc/lab/gpu_mib.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

ENGINE_TITLE = re.compile(r"^(ray::RayWorkerProc|VLLM::Worker)")
STAND_IN = re.compile(rb"(?:^|\0)LAB_GPU_MIB=(\d+)")
ENGINE_SIZE_FILE = Path("/etc/lab/gpu_mib")
PROC = Path("/proc")
# The service that plays the hardware writes down what it saw: an ordinary user may not read the environment of others.
SEEN_FILE = Path("/run/lab/gpu_holders.json")


@dataclass(frozen=True)
class Holder:
    pid: int
    parent: int
    name: str
    mib: int
    started: int  # clock ticks since boot
    pid_namespace: int


def holders() -> list[Holder]:
    if os.geteuid() != 0:
        seen = [Holder(**entry) for entry in json.loads(SEEN_FILE.read_text())]
        return [holder for holder in seen if (PROC / str(holder.pid)).exists()]
    return scan()


def as_json(found: list[Holder]) -> str:
    return json.dumps([asdict(holder) for holder in found])


def scan() -> list[Holder]:
    found = [holder for path in PROC.glob("[0-9]*") if (holder := _read(path))]
    found.sort(key=lambda holder: (holder.started, holder.pid))
    host_namespace = (PROC / "1/ns/pid").stat().st_ino
    holding = {holder.pid for holder in found if not ENGINE_TITLE.match(holder.name)}
    seen_containers: set[int] = set()
    result = []
    for holder in found:
        if not ENGINE_TITLE.match(holder.name):
            if holder.parent in holding:
                continue  # inherited the variable
            if holder.pid_namespace != host_namespace:
                if holder.pid_namespace in seen_containers:
                    continue
                seen_containers.add(holder.pid_namespace)
        result.append(holder)
    return sorted(result, key=lambda holder: holder.pid)


def _read(path: Path) -> Holder | None:
    try:
        fields = (path / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        name = (path / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        if fields[0] == "Z" or not name:
            return None
        if ENGINE_TITLE.match(name):
            mib = int(ENGINE_SIZE_FILE.read_text())
        else:
            match = STAND_IN.search((path / "environ").read_bytes())
            if not match:
                return None
            mib = int(match.group(1))
        return Holder(
            pid=int(path.name),
            parent=int(fields[1]),
            name=name,
            mib=mib,
            started=int(fields[19]),
            pid_namespace=(path / "ns/pid").stat().st_ino,
        )
    except (OSError, ValueError, IndexError):
        return None  # ended while it was read
