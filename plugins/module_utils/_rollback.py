# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The way back: a deployment removed, what ran before started again and checked.

PRIVATE to this collection. Standard library only, it is part of a host program.
"""

from __future__ import annotations

import base64
import glob
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _workloads as workloads
from ansible_collections.dgxspark.serving.plugins.module_utils._files import write_file
from ansible_collections.dgxspark.serving.plugins.module_utils._listeners import all_listeners
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import (
    SECRET_FILES,
    RestorePoint,
    in_start_order,
    managed_files,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._teardown import DROP_IN_FOLDER, SUSPENDED_DROP_IN
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandRunner,
    Container,
    WorkloadError,
    run_command,
)

# What was started answers again within this time: a 120 GB model takes about ten minutes from the disk of a Spark.
ANSWERS_AGAIN_SECONDS = 900
# How often the services are looked at meanwhile.
LOOK_EVERY_SECONDS = 1


@dataclass
class Restored:
    """removed: what of our deployment is gone. changed: what was done to bring back the rest. restored: what of the restore
    point runs and answers. problems: what does not, and why."""

    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def remove_deployment(with_secrets: bool = False, run: CommandRunner = run_command) -> list[str]:
    """Stop our units, remove our containers and files. Returns what was removed.

    with_secrets: also the keys of API and Ray, which a failed run leaves to the next.
    """
    present = [unit for unit in workloads.units(workloads.MANAGED_UNITS, run) if unit.exists]
    names = [unit.name for unit in present]
    workloads.enable_units([unit.name for unit in present if unit.enabled == "enabled"], False, run)
    workloads.stop_units(names, run)
    containers = [item for item in workloads.containers(run) if item.managed]
    workloads.remove_containers([item.id for item in containers], run)
    files = managed_files() + [path for path in SECRET_FILES if with_secrets and os.path.isfile(path)]
    for path in files:
        os.unlink(path)
        if os.path.dirname(path).endswith(".d") and not os.listdir(os.path.dirname(path)):
            os.rmdir(os.path.dirname(path))
    if files:
        workloads.reload_systemd(run)
    return (
        [f"unit {name}" for name in names]
        + [f"container {item.name}" for item in containers]
        + [f"file {path}" for path in files]
    )


def is_in_force(point: RestorePoint, run: CommandRunner = run_command) -> bool:
    """Whether all that the point names runs already, with its files and nothing else of ours: there is nothing to bring back."""
    paths = managed_files()
    if sorted(paths) != sorted(point.files) or _suspended(point):
        return False
    for path, saved in point.files.items():
        with open(path, "rb") as handle:
            if handle.read() != base64.b64decode(saved["content"]):
                return False
    ours = {unit["name"] for unit in point.units} | {item["name"] for item in point.containers}
    extra = [unit for unit in workloads.units(workloads.MANAGED_UNITS, run) if unit.running and unit.name not in ours]
    return not extra and not _pending(point, run, {})


def _suspended(point: RestorePoint, folder: str = DROP_IN_FOLDER) -> list[str]:
    paths = [f"{folder}/{unit['name']}.d/{SUSPENDED_DROP_IN}" for unit in point.units]
    return [path for path in paths if os.path.exists(path)]


def _restore_files(point: RestorePoint, run: CommandRunner) -> list[str]:
    done = []
    for path in _suspended(point):
        os.unlink(path)
        if not glob.glob(f"{os.path.dirname(path)}/*"):
            os.rmdir(os.path.dirname(path))
        done.append(f"file {path}")
    for path, saved in point.files.items():
        os.makedirs(os.path.dirname(path), mode=0o755 if path.startswith(DROP_IN_FOLDER) else 0o750, exist_ok=True)
        write_file(path, base64.b64decode(saved["content"]), saved["mode"])
        done.append(f"file {path}")
    if done:
        workloads.reload_systemd(run)
    return done


def _restore_container(recorded: Mapping[str, Any], now: Container | None, run: CommandRunner) -> list[str]:
    """What was done. Raises WorkloadError."""
    if now is None:
        raise WorkloadError("does not exist any more")
    done = []
    if now.restart_policy != recorded["restart_policy"]:
        workloads.set_restart_policy([now.id], recorded["restart_policy"], run)
        done.append(f"restart policy {recorded['restart_policy']} of {now.name}")
    if recorded["state"] != "exited" and not now.alive:
        workloads.start_container(now.id, run)
        done.append(f"container {now.name}")
        if recorded["state"] == "paused":
            workloads.pause_container(now.id, run)
    return done


def _restore_units(point: RestorePoint, run: CommandRunner) -> list[str]:
    now = {unit.name: unit for unit in workloads.units([unit["name"] for unit in point.units], run)}
    gone = [name for name, unit in now.items() if not unit.exists]
    enable = [
        unit["name"]
        for unit in point.units
        if unit["enabled"] == "enabled" and now[unit["name"]].exists and now[unit["name"]].enabled != "enabled"
    ]
    start = {
        unit["name"]: unit
        for unit in reversed(point.units)
        if unit["running"] and not now[unit["name"]].running and unit["name"] not in gone
    }
    # systemd refuses to start a socket whose service runs: sockets, timers and paths come first, and their services make way.
    triggers = [name for name in start if not name.endswith(".service")]
    for unit in point.units:
        if set(unit["triggered_by"]) & set(triggers) and now[unit["name"]].running:
            workloads.stop_units([unit["name"]], run)
            start[unit["name"]] = unit
    workloads.enable_units(enable, True, run)
    workloads.start_units(triggers, run, wait=True)
    workloads.start_units([name for name in start if name not in triggers], run)
    return [f"enabled unit {name}" for name in enable] + [f"unit {name}" for name in start]


def bring_back(
    point: RestorePoint,
    run: CommandRunner = run_command,
    sleep: Callable[[float], Any] = time.sleep,
    wait_seconds: float = ANSWERS_AGAIN_SECONDS,
    say: Callable[[str], Any] = lambda line: None,
) -> Restored:
    """Start what ran before, after our own deployment was removed, and wait until it answers as it did.

    May be called again: what runs already is left alone.
    """
    result = Restored(changed=_restore_files(point, run))
    failed: dict[str, str] = {}
    present = {item.id: item for item in workloads.containers(run)}
    for recorded in in_start_order(point.containers):
        try:
            result.changed += _restore_container(recorded, present.get(recorded["id"]), run)
        except WorkloadError as error:
            failed[f"container {recorded['name']}"] = str(error)
    try:
        result.changed += _restore_units(point, run)
    except WorkloadError as error:
        failed |= {f"unit {unit['name']}": str(error) for unit in point.units}
    waited, said = 0.0, ""
    pending = _pending(point, run, failed)
    while waited < wait_seconds and any(not final for _reason, final in pending.values()):
        line = "; ".join(f"{name} {reason}" for name, (reason, _final) in pending.items())
        if line != said:
            say(f"waiting: {line}")
            said = line
        sleep(LOOK_EVERY_SECONDS)
        waited += LOOK_EVERY_SECONDS
        pending = _pending(point, run, failed)
    result.restored = [name for name in point.names if name not in pending]
    result.problems = [f"{name} {reason}" for name, (reason, _final) in pending.items()]
    return result


def _pending(point: RestorePoint, run: CommandRunner, failed: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
    """What does not run as it did: (why, whether waiting is useless)."""
    pending = {name: (f"could not be started: {reason}", True) for name, reason in failed.items()}
    present = {item.id: item for item in workloads.containers(run)}
    ports = {listener.port for listener in all_listeners()} | {
        port for item in present.values() if item.alive for port in item.published_ports
    }
    for recorded in point.containers:
        name = f"container {recorded['name']}"
        reason = _container_pending(recorded, present.get(recorded["id"]), ports)
        if reason:
            pending.setdefault(name, reason)
    wanted = [unit for unit in point.units if unit["running"] or unit["enabled"] == "enabled"]
    for recorded, unit in zip(wanted, workloads.units([unit["name"] for unit in wanted], run), strict=True):
        reason = _unit_pending(recorded, unit, ports)
        if reason:
            pending.setdefault(f"unit {unit.name}", reason)
    return pending


def _closed(recorded: Mapping[str, Any], ports: set[int]) -> str:
    closed = [str(port) for port in recorded["ports"] if port not in ports]
    return f"does not listen on port {', '.join(closed)} yet" if closed else ""


def _container_pending(recorded: Mapping[str, Any], now: Container | None, ports: set[int]) -> tuple[str, bool] | None:
    if now is None:
        return ("does not exist any more", True)
    if now.restart_policy != recorded["restart_policy"]:
        return (f"has restart policy {now.restart_policy} instead of {recorded['restart_policy']}", True)
    if recorded["state"] == "exited":
        return None
    if not now.alive:
        return (f"is {now.state}", recorded["restart_policy"] == "no")
    if recorded["health"] == "healthy" and now.health != "healthy":
        return (f"is {now.health or 'without health'}, was healthy", False)
    closed = _closed(recorded, ports)
    return (closed, False) if closed else None


def _unit_pending(recorded: Mapping[str, Any], now: workloads.Unit, ports: set[int]) -> tuple[str, bool] | None:
    if not now.exists:
        return ("does not exist any more", True)
    if recorded["enabled"] == "enabled" and now.enabled != "enabled":
        return (f"is {now.enabled}, was enabled", True)
    if not recorded["running"]:
        return None
    if recorded["active"] != "active":
        return None  # It was on its way up or down: that it was started is all that can be asked.
    if now.active != "active":
        # Down, and nothing is queued: it does not come any more. One with Restart= is "activating" until its next try.
        return (f"is {now.active}", now.active in ("failed", "inactive") and not now.job)
    closed = _closed(recorded, ports)
    return (closed, False) if closed else None
