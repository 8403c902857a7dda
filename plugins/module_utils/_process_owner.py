# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""To whom a process belongs: container, systemd unit, user, command.

PRIVATE to this collection. Reads only C(/proc), so it needs no rights beyond those to read it.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass

# A container's cgroup is named after its 64 digit id: /docker/ID with the cgroupfs driver, with the systemd driver
# /system.slice/docker-ID.scope (moby, daemon/daemon_unix.go); libpod-ID.scope and cri-containerd-ID.scope look alike.
_CONTAINER_CGROUP = re.compile(r"/(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?(?=/|$)")
_UNIT_CGROUP = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")
# Scopes that systemd makes for each container or session say nothing about an owner.
_SCOPES_WITHOUT_OWNER = re.compile(r"^(?:[a-z-]+-[0-9a-f]{64}|session-\S+|init)\.scope$")
# What runs below it belongs to a login or to a user's own service manager: systemctl stop does not know its units.
_USER_SLICE = "/user.slice/"


@dataclass(frozen=True)
class ProcessOwner:
    """container_id: 64 hex digits or empty; systemd_unit: C(name.service) or empty; user: login name or the number.

    name: the kernel's short name. started: clock ticks since boot; pid and start together are never given twice.
    """

    pid: int
    command: str
    container_id: str
    systemd_unit: str
    user: str
    parent_pid: int
    name: str = ""
    started: int = 0


def parse_cgroup(text: str) -> tuple[str, str]:
    """(container id, system unit) from the text of C(/proc/PID/cgroup); empty strings where there is none."""
    container, unit = "", ""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        found = _CONTAINER_CGROUP.findall(path)
        if found:
            # The innermost: a container can run in a container.
            container = found[-1]
        if _USER_SLICE in path:
            continue
        for name in _UNIT_CGROUP.findall(path):
            if not _SCOPES_WITHOUT_OWNER.match(name):
                # The outermost: below it a service may have cgroups of its own.
                unit = unit or name
    return container, "" if container and unit in ("docker.service", "containerd.service") else unit


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def process_owner(pid: int, proc_root: str = "/proc") -> ProcessOwner | None:
    """Who owns process C(pid); None when it does not exist (any more)."""
    folder = f"{proc_root}/{pid}"
    status = _read(f"{folder}/status")
    if not status:
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    uid = int(fields.get("Uid", "0").split()[0])
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    command = _read(f"{folder}/cmdline").replace("\0", " ").strip() or fields.get("Name", "").strip()
    container, unit = parse_cgroup(_read(f"{folder}/cgroup"))
    if container and container == parse_cgroup(_read(f"{proc_root}/1/cgroup"))[0]:
        # This host is a container itself: its own id is no owner of what runs on it.
        container = ""
    name = fields.get("Name", "").strip()
    return ProcessOwner(
        pid, command, container, unit, user, int(fields.get("PPid", "0")), name, start_ticks(pid, proc_root)
    )


def start_ticks(pid: int, proc_root: str = "/proc") -> int:
    """When the process began, in clock ticks since boot; 0 when there is none. A zombie counts as none: it holds nothing."""
    # The name in parentheses may hold spaces and parentheses; state is the first and starttime the 20th field behind it (proc(5)).
    fields = _read(f"{proc_root}/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else 0


def running_pids(proc_root: str = "/proc") -> list[int]:
    return sorted(int(name) for name in os.listdir(proc_root) if name.isdigit())
