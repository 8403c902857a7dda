# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ran on a host before a deployment stopped it: recorded, stopped, brought back.

PRIVATE to this collection. Standard library only, see _workloads.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _workloads as workloads
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import (
    KEEP,
    OURS,
    STOP,
    UNLISTED,
    Selection,
    classify,
    container_of_unit,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandRunner,
    Container,
    Unit,
    WorkloadError,
    run_command,
)

RESTORE_FOLDER = "/var/lib/dgxspark/restore"
# The newest ones are kept, and the first of all for ever (design, "Converged").
KEPT_RESTORE_POINTS = 5
ORIGINAL = "original"
# The run whose id the labels of our containers carry; the next run writes its own.
RUN_FILE = "/etc/dgxspark/run.env"
# Files of ours that a deployment writes; a restore point holds what they were. The keys and tokens are not among them.
MANAGED_FILES = (
    "/etc/systemd/system/dgxspark-ray.service",
    "/etc/systemd/system/dgxspark-vllm.service",
    "/etc/dgxspark/ray.env",
    RUN_FILE,
    "/etc/dgxspark/vllm/ray_non_carry_over_env_vars.json",
    "/var/lib/dgxspark/state/deployment.json",
)
# A restart policy or a Restart= of another unit has brought a service back within this time; systemd's default RestartSec is 0.1 s.
COMES_BACK_SECONDS = 3
# What was started must be up after so long; a container that answered before may still be loading, so only its state is judged.
RUNNING_AGAIN_SECONDS = 30


@dataclass
class RestorePoint:
    """What ran. units: what was running or enabled, in the order of stopping; containers: what was alive."""

    run: str
    created: float
    units: list[dict[str, Any]] = field(default_factory=list)
    containers: list[dict[str, Any]] = field(default_factory=list)
    # path -> {mode: int, content: base64 text} of what was there; a path that is missing here did not exist.
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str) -> RestorePoint:
        try:
            with open(path, encoding="utf-8") as handle:
                return cls(**json.load(handle))
        except (OSError, ValueError, TypeError) as error:
            raise WorkloadError(f"Cannot read restore point {path}: {error}") from error

    def save(self, folder: str) -> str:
        """Write the record, readable by root only, and forget all but the newest few. Returns its path."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        text = json.dumps(self.__dict__, indent=1, sort_keys=True)
        path = f"{folder}/{self.run}.json"
        for target in (path, *([] if os.path.exists(f"{folder}/{ORIGINAL}.json") else [f"{folder}/{ORIGINAL}.json"])):
            _write_file(target, text.encode(), 0o600)
        records = sorted(
            (name for name in os.listdir(folder) if name.endswith(".json") and name != f"{ORIGINAL}.json"), reverse=True
        )
        for name in records[KEPT_RESTORE_POINTS:]:
            os.unlink(f"{folder}/{name}")
        return path


@dataclass(frozen=True)
class Teardown:
    """What a teardown will touch: to stop, and what it keeps although it is alive."""

    units: tuple[Unit, ...]
    containers: tuple[Container, ...]
    kept: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [f"unit {unit.name}" for unit in self.units] + [
            f"container {container.name}" for container in self.containers
        ]

    @property
    def empty(self) -> bool:
        return not self.units and not self.containers


def _write_file(path: str, content: bytes, mode: int) -> None:
    partial = f"{path}.new"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    os.chmod(partial, mode)
    os.replace(partial, path)


def _as_holder(container: Container) -> dict[str, Any]:
    return {"container": container.name, "image": container.image, "labels": container.labels}


def plan_teardown(
    stop: Selection, keep: Selection, stop_unlisted: Sequence[str] = (), run: CommandRunner = run_command
) -> Teardown:
    """What is to be stopped on this host: what the user named, what an earlier deployment of ours runs, and C(stop_unlisted)
    (names of containers and units that hold memory and that the user allowed to stop).

    A container that a stopped unit runs is the unit's business. What is on the keep-list is never in the answer.
    """
    present = workloads.containers(run)
    named = [
        unit
        for unit in workloads.units(
            [*workloads.MANAGED_UNITS, *stop.units, *[u for u in stop_unlisted if "." in u]], run
        )
        if unit.exists
    ]
    unit_containers = {
        container_of_unit(unit.start_command): unit.name for unit in named if container_of_unit(unit.start_command)
    }
    kept, to_stop = [], []
    for container in present:
        if not container.alive:
            continue
        owner = classify(_as_holder(container), stop, keep, unit_containers)
        if owner == KEEP:
            kept.append(f"container {container.name}")
        elif (
            owner in (STOP, OURS) or (owner == UNLISTED and container.name in stop_unlisted)
        ) and container.name not in unit_containers:
            to_stop.append(container)
    units_to_stop = tuple(
        unit for unit in named if (unit.running or unit.enabled == "enabled") and not keep.names_unit(unit.name)
    )
    kept += [f"unit {unit.name}" for unit in workloads.units(keep.units, run) if unit.exists and unit.running]
    known = {unit.name for unit in named} | {container.name for container in present}
    missing = tuple(name for name in (*stop.units, *stop.containers) if name not in known)
    return Teardown(units_to_stop, tuple(to_stop), tuple(sorted(kept)), missing)


def record(run_id: str, teardown: Teardown) -> RestorePoint:
    """The restore point of a teardown that has not begun."""
    point = RestorePoint(run=run_id, created=time.time())
    point.units = [{"name": unit.name, "running": unit.running, "enabled": unit.enabled} for unit in teardown.units]
    point.containers = [
        {"id": item.id, "name": item.name, "state": item.state, "restart_policy": item.restart_policy}
        for item in teardown.containers
    ]
    for path in MANAGED_FILES:
        if os.path.isfile(path):
            with open(path, "rb") as handle:
                content = base64.b64encode(handle.read()).decode()
            point.files[path] = {"mode": os.stat(path).st_mode & 0o777, "content": content}
    return point


def stop_all(teardown: Teardown, run: CommandRunner = run_command, sleep: Any = time.sleep) -> list[str]:
    """Stop what the plan says; units first, because a unit may start its container again.

    Returns the names of what is alive again afterwards (somebody starts it). Raises WorkloadError when something cannot be stopped.
    """
    for unit in teardown.units:
        if unit.enabled == "enabled":
            workloads.enable_unit(unit.name, False, run)
        workloads.stop_unit(unit.name, run)
    unit_containers = {container_of_unit(unit.start_command) for unit in teardown.units} - {""}
    left_over = [item for item in workloads.containers(run) if item.alive and item.name in unit_containers]
    for container in (*teardown.containers, *left_over):
        if container.restart_policy != "no":
            # Suspended, so that a restart of the engine or of the host does not bring it back into the new deployment's memory.
            workloads.set_restart_policy(container.id, "no", run)
        workloads.stop_container(container.id, run)
    if any(unit.name in workloads.MANAGED_UNITS for unit in teardown.units) and os.path.exists(RUN_FILE):
        os.unlink(RUN_FILE)
    if teardown.empty:
        return []
    sleep(COMES_BACK_SECONDS)
    stopped = {container.id for container in teardown.containers}
    back = [
        f"unit {unit.name}" for unit in workloads.units([unit.name for unit in teardown.units], run) if unit.running
    ]
    back += [
        f"container {item.name}"
        for item in workloads.containers(run)
        if item.alive and (item.id in stopped or item.name in unit_containers)
    ]
    return back


def remove_deployment(run: CommandRunner = run_command) -> list[str]:
    """Stop our units and remove our containers and unit files. Returns what was removed."""
    removed = []
    for unit in workloads.units(workloads.MANAGED_UNITS, run):
        if not unit.exists:
            continue
        if unit.enabled == "enabled":
            workloads.enable_unit(unit.name, False, run)
        workloads.stop_unit(unit.name, run)
        removed.append(f"unit {unit.name}")
    for container in workloads.containers(run):
        if container.managed:
            workloads.remove_container(container.id, run)
            removed.append(f"container {container.name}")
    for path in MANAGED_FILES:
        if os.path.isfile(path):
            os.unlink(path)
            removed.append(f"file {path}")
    workloads.reload_systemd(run)
    return removed


def bring_back(
    point: RestorePoint, run: CommandRunner = run_command, sleep: Any = time.sleep
) -> tuple[list[str], list[str]]:
    """(what runs again, what could not be brought back and why), after our own deployment was removed."""
    for path, saved in point.files.items():
        os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
        _write_file(path, base64.b64decode(saved["content"]), saved["mode"])
    workloads.reload_systemd(run)
    failed: dict[str, str] = {}
    # The last that was stopped is the first to start: what others depend on was named first.
    for container in reversed(point.containers):
        try:
            if container["restart_policy"] != "no":
                workloads.set_restart_policy(container["id"], container["restart_policy"], run)
            workloads.start_container(container["id"], run)
            if container["state"] == "paused":
                workloads.pause_container(container["id"], run)
        except WorkloadError as error:
            failed[f"container {container['name']}"] = str(error)
    for unit in reversed(point.units):
        try:
            if unit["enabled"] == "enabled":
                workloads.enable_unit(unit["name"], True, run)
            if unit["running"]:
                workloads.start_unit(unit["name"], run)
        except WorkloadError as error:
            failed[f"unit {unit['name']}"] = str(error)
    return _verify_running(point, failed, run, sleep)


def _verify_running(
    point: RestorePoint, failed: Mapping[str, str], run: CommandRunner, sleep: Any
) -> tuple[list[str], list[str]]:
    expected_units = [unit["name"] for unit in point.units if unit["running"]]
    expected = [f"unit {name}" for name in expected_units] + [f"container {item['name']}" for item in point.containers]
    down: set[str] = set(expected)
    for _attempt in range(RUNNING_AGAIN_SECONDS):
        alive = {item.id for item in workloads.containers(run) if item.alive}
        down = {f"container {item['name']}" for item in point.containers if item["id"] not in alive}
        down |= {f"unit {unit.name}" for unit in workloads.units(expected_units, run) if unit.active != "active"}
        if not down:
            break
        sleep(1)
    problems = [f"{name}: {failed.get(name, 'is not running')}" for name in expected if name in down or name in failed]
    return [name for name in expected if name not in down], problems
