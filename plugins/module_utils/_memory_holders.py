# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who holds GPU memory: the processes that nvidia-smi lists, traced to container, unit and user.

PRIVATE to this collection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._engine_processes import (
    has_lost_its_server,
    is_engine_process,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._memory import GIB_DECIMALS, GpuProcess
from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import (
    ProcessOwner,
    process_owner,
    running_pids,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import process_title

# Commands of the docker CLI that wait for the end of a container.
_FOREGROUND = {"run", "start", "attach"}
# The inode of the first PID namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h): elsewhere not all processes show.
_HOST_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True)
class Container:
    """What the engine knows about a container."""

    id: str
    name: str
    image: str
    labels: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_inspection(cls, found: dict[str, Any] | None) -> Container | None:
        """None for a container that the engine does not have: of another engine, or just removed."""
        if found is None:
            return None
        config = found["Config"]
        return cls(found["Id"], found["Name"].lstrip("/"), config["Image"], config.get("Labels") or {})


@dataclass(frozen=True)
class Holder:
    """A process with GPU memory. visible: false when this host's C(/proc) does not show it.

    process: the program without its arguments, which may carry keys. title: how the process is named on a list.
    """

    pid: int
    process: str
    used_gib: float | None
    gpus: list[int]
    graphics: bool
    user: str = ""
    container: str = ""
    container_id: str = ""
    image: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    systemd_unit: str = ""
    title: str = ""
    orphan: bool = False
    visible: bool = True

    @property
    def owner(self) -> str:
        """The thing to stop, in words."""
        if self.systemd_unit:
            return f"unit {self.systemd_unit}"
        if self.container_id:
            return f"container {self.container or self.container_id[:12]}"
        return f"process {self.pid}" + (f" of {self.user}" if self.user else "")

    def as_dict(self) -> dict[str, Any]:
        result = asdict(self)
        result["used_gib"] = None if self.used_gib is None else round(self.used_gib, GIB_DECIMALS)
        return result


def sees_all_processes(proc_root: str = "/proc") -> bool:
    """Whether C(proc_root) shows the processes of the whole host, and not only those of a container."""
    try:
        return os.readlink(f"{proc_root}/self/ns/pid") == _HOST_PID_NAMESPACE
    except OSError:
        return True


def _program(process: GpuProcess, owner: ProcessOwner | None) -> str:
    """The name of the program without its arguments, which may carry keys."""
    if owner and (not process.name or process.name.startswith("...")):
        return owner.command.split(" ")[0]
    return process.name


def _is_orphan(owner: ProcessOwner, proc_root: str) -> bool:
    """A worker of an engine whose server is gone and that nothing would stop.

    Its parent need not be 1: a subreaper or the shell that started the server takes it over.
    """
    if not is_engine_process(owner) or owner.container_id or owner.systemd_unit:
        return False
    return has_lost_its_server(owner, lambda pid: process_owner(pid, proc_root))


def find_holders(processes: Iterable[GpuProcess], proc_root: str = "/proc") -> list[Holder]:
    """One holder per process, the largest first. A process on several GPUs is one holder with the sum."""
    holders: dict[int, Holder] = {}
    for process in processes:
        gpus = [int(process.gpu)] if process.gpu.isdigit() else []
        known = holders.get(process.pid)
        if known:
            sizes = [size for size in (known.used_gib, process.used_gib) if size is not None]
            holders[process.pid] = replace(
                known,
                used_gib=sum(sizes) if sizes else None,
                gpus=sorted({*known.gpus, *gpus}),
                graphics=known.graphics or process.graphics,
            )
            continue
        owner = process_owner(process.pid, proc_root)
        holder = Holder(
            process.pid, _program(process, owner), process.used_gib, gpus, process.graphics, visible=owner is not None
        )
        if owner:
            holder = replace(
                holder,
                user=owner.user,
                title=process_title(owner.command),
                container_id=owner.container_id,
                systemd_unit=owner.systemd_unit,
                orphan=_is_orphan(owner, proc_root),
            )
        holders[process.pid] = holder
    return sorted(holders.values(), key=lambda holder: -(holder.used_gib or 0.0))


def name_containers(
    holders: list[Holder], inspect: Callable[[str], Container | None], proc_root: str = "/proc"
) -> list[Holder]:
    """The holders with name, image and labels of their containers, and with the unit that runs the container."""
    containers = {holder.container_id: inspect(holder.container_id) for holder in holders if holder.container_id}
    units = _units_of_foreground_containers(containers.values(), proc_root) if containers else {}
    named = []
    for holder in holders:
        container = containers.get(holder.container_id)
        if container:
            unit = holder.systemd_unit or units.get(container.id, "")
            holder = replace(
                holder, container=container.name, image=container.image, labels=container.labels, systemd_unit=unit
            )
        named.append(holder)
    return named


def _units_of_foreground_containers(containers: Iterable[Container | None], proc_root: str) -> dict[str, str]:
    """Units in which a C(docker run) of a container waits: such a unit starts a stopped container again."""
    names = {container.name: container.id for container in containers if container}
    units = {}
    for pid in running_pids(proc_root):
        owner = process_owner(pid, proc_root)
        if not owner or not owner.systemd_unit or owner.container_id:
            continue
        words = owner.command.split(" ")
        if os.path.basename(words[0]) not in ("docker", "podman") or not _FOREGROUND & set(words):
            continue
        for name in names.keys() & {word.removeprefix("--name=") for word in words[1:]}:
            units[names[name]] = owner.systemd_unit
    return units
