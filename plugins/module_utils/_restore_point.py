# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ran on a host before a deployment stopped it, as a record on that host.

PRIVATE to this collection. Standard library only, it is part of a host program.
"""

from __future__ import annotations

import base64
import glob
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._backend import RAY_PORTS
from ansible_collections.dgxspark.serving.plugins.module_utils._files import write_file
from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import EPHEMERAL_PORTS
from ansible_collections.dgxspark.serving.plugins.module_utils._listeners import all_listeners
from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import process_owner
from ansible_collections.dgxspark.serving.plugins.module_utils._teardown import Teardown
from ansible_collections.dgxspark.serving.plugins.module_utils._unit_owners import runs_itself
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import MANAGED_UNITS, WorkloadError

# Of our own units only what is below is fixed: the API and Ray's head. Workers and agents get one of the ports from here on.
_FIRST_OF_OUR_RANGES = int(RAY_PORTS["ray_workers"][0])
RESTORE_FOLDER = "/var/lib/dgxspark/restore"
# The newest ones are kept, and the first of all for ever (design, "Converged").
KEPT_RESTORE_POINTS = 5
ORIGINAL = "original"
# The run whose id the labels of our containers carry; the next run writes its own.
RUN_FILE = "/etc/dgxspark/run.env"
# Drop-ins that acceptance writes for our units; a new deployment must not begin with them.
ACCEPTED_FILES = "/etc/systemd/system/dgxspark-*.service.d/*.conf"
# What the last accepted deployment was.
STATE_FILE = "/var/lib/dgxspark/state/deployment.json"
# What a deployment writes on a host; a restore point holds what was there.
MANAGED_FILES = (
    "/etc/systemd/system/dgxspark-*.service",
    "/etc/systemd/system/dgxspark-*.timer",
    ACCEPTED_FILES,
    "/etc/dgxspark/*",
    "/etc/dgxspark/vllm/*",
    STATE_FILE,
)
# The way back is no part of what is brought back.
RESTORE_UNITS = ("dgxspark-restore.service", "dgxspark-restore.timer")
# Secrets stay where they live: they are neither recorded nor removed with a failed run.
SECRET_FILES = ("/etc/dgxspark/ray-token", "/etc/dgxspark/api-key")
_RECORD_SUFFIX = ".json"


@dataclass
class RestorePoint:
    """What ran.

    units: name, running, active, enabled, triggered_by and the TCP ports it listened on, in the order of stopping.
    containers: id, name, state, restart_policy, health, ports and its place in a compose project.
    ended: processes and containers that were ended and cannot be brought back. files: path to {mode, content as base64}; a managed
    path that is missing here did not exist.
    """

    run: str
    created: float
    units: list[dict[str, Any]] = field(default_factory=list)
    containers: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """What is running again after a restore."""
        return [f"unit {unit['name']}" for unit in self.units if unit["running"]] + [
            f"container {item['name']}" for item in self.containers if item["state"] != "exited"
        ]

    @classmethod
    def load(cls, name: str, folder: str = RESTORE_FOLDER) -> RestorePoint:
        """The record of a run, or V(original). Raises WorkloadError with the names that there are."""
        path = record_path(name, folder)
        try:
            with open(path, encoding="utf-8") as handle:
                return cls(**json.load(handle))
        except FileNotFoundError as error:
            known = ", ".join(record_names(folder)) or "none"
            raise WorkloadError(
                f"There is no restore point {name} on this host ({path}); there are: {known}."
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise WorkloadError(f"Cannot read restore point {path}: {error}") from error

    def save(self, folder: str = RESTORE_FOLDER) -> str:
        """Write the record, readable by root only, and forget all but the newest few. Returns its path.

        What an interrupted teardown of the same run has recorded stays: it has stopped part of it.
        """
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = record_path(self.run, folder)
        if os.path.exists(path):
            self._take_over(RestorePoint.load(self.run, folder))
        text = json.dumps(self.__dict__, indent=1, sort_keys=True).encode()
        write_file(path, text, 0o600)
        if not os.path.exists(record_path(ORIGINAL, folder)):
            write_file(record_path(ORIGINAL, folder), text, 0o600)
        for name in [name for name in record_names(folder) if name != ORIGINAL][KEPT_RESTORE_POINTS:]:
            os.unlink(record_path(name, folder))
        return path

    def _take_over(self, first: RestorePoint) -> None:
        units = {unit["name"] for unit in first.units}
        containers = {item["id"] for item in first.containers}
        self.created, self.files = first.created, first.files
        self.units = first.units + [unit for unit in self.units if unit["name"] not in units]
        self.containers = first.containers + [item for item in self.containers if item["id"] not in containers]
        self.ended = first.ended + [title for title in self.ended if title not in first.ended]


def record_path(name: str, folder: str = RESTORE_FOLDER) -> str:
    return f"{folder}/{name}{_RECORD_SUFFIX}"


def record_names(folder: str = RESTORE_FOLDER) -> list[str]:
    """Names of the records, the newest first, V(original) last.

    By this host's clock, when they were written: names of runs come from the clocks of control nodes, and one may be behind.
    """
    written = {
        os.path.basename(path).removesuffix(_RECORD_SUFFIX): os.stat(path).st_mtime_ns
        for path in glob.glob(f"{folder}/*{_RECORD_SUFFIX}")
    }
    runs = sorted(set(written) - {ORIGINAL}, key=lambda name: (written[name], name), reverse=True)
    return runs + [ORIGINAL] * (ORIGINAL in written)


def deployed_run(path: str = RUN_FILE) -> str:
    """Id of the run whose deployment is on this host, from gate 7 on. Empty where there is none."""
    try:
        with open(path, encoding="utf-8") as handle:
            found = re.search(r"^DGXSPARK_RUN=(\S+)$", handle.read(), re.MULTILINE)
    except FileNotFoundError:
        return ""
    return found[1] if found else ""


def accepted_files() -> list[str]:
    return sorted(glob.glob(ACCEPTED_FILES))


def managed_files() -> list[str]:
    """The files of a deployment that are there, without secrets and without the way back."""
    return [
        path
        for pattern in MANAGED_FILES
        for path in sorted(glob.glob(pattern))
        if os.path.isfile(path) and path not in SECRET_FILES and os.path.basename(path) not in RESTORE_UNITS
    ]


def _listening(teardown: Teardown) -> dict[str, list[int]]:
    """Unit name or container id to the TCP ports on which it listens."""
    ports: dict[str, set[int]] = {item.id: set(item.published_ports) for item in teardown.containers}
    owned = {item.id: unit.name for unit in teardown.units for item in runs_itself(unit, teardown.unit_containers)}
    for listener in all_listeners():
        owner = process_owner(listener.pid) if listener.pid else None
        if owner:
            ports.setdefault(owned.get(owner.container_id) or owner.container_id or owner.systemd_unit, set()).add(
                listener.port
            )
    for item in teardown.unit_containers:
        ports.setdefault(owned.get(item.id, ""), set()).update(item.published_ports)
    return {name: sorted(found - _picked(name, found)) for name, found in ports.items()}


def _picked(name: str, ports: set[int]) -> set[int]:
    """Ports that a restart changes: those that the kernel picks, and those of our own units that Ray takes out of its range."""
    first, last = EPHEMERAL_PORTS
    from_range = {port for port in ports if port >= _FIRST_OF_OUR_RANGES} if name in MANAGED_UNITS else set()
    return from_range | {port for port in ports if first <= port <= last}


def record(run_id: str, teardown: Teardown) -> RestorePoint:
    """The restore point of a teardown that has not begun."""
    ports = _listening(teardown)
    point = RestorePoint(run=run_id, created=time.time())
    point.units = [
        {
            "name": unit.name,
            "running": unit.running,
            "active": unit.active,
            "enabled": unit.enabled,
            "triggered_by": list(unit.triggered_by),
            # Of a socket unit the manager itself listens: it is asked for its state only.
            "ports": ports.get(unit.name, []) if unit.running else [],
        }
        for unit in (*teardown.triggers, *teardown.units)
    ]
    point.containers = [
        {
            "id": item.id,
            "name": item.name,
            "state": item.state,
            "restart_policy": item.restart_policy,
            "health": item.health,
            "ports": ports.get(item.id, []) if item.state == "running" else [],
            "compose_project": item.compose_project,
            "compose_service": item.compose_service,
            "compose_needs": list(item.compose_needs),
        }
        for item in teardown.containers
        # Our own is removed, and its unit makes it anew. One of docker run --rm is gone once it is stopped.
        if not item.managed and not item.auto_remove
    ]
    point.ended = teardown.lost
    for path in managed_files():
        with open(path, "rb") as handle:
            content = base64.b64encode(handle.read()).decode()
        point.files[path] = {"mode": os.stat(path).st_mode & 0o777, "content": content}
    return point


def in_start_order(containers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last that was stopped first, but within a compose project what others need before them."""
    ordered: list[dict[str, Any]] = []
    waiting = list(reversed(containers))
    while waiting:
        for item in waiting:
            needed = {(item.get("compose_project"), service) for service in item.get("compose_needs", ())}
            if not any(
                (other.get("compose_project"), other.get("compose_service")) in needed
                for other in waiting
                if other is not item
            ):
                break
        else:
            item = waiting[0]  # They need each other; Compose refuses that, and any order is as good.
        waiting.remove(item)
        ordered.append(item)
    return ordered
