# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host serves, what it could go back to, and what happened last.

PRIVATE to this collection. Standard library only: it must also work on a host that was never deployed to.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._restore_lease import read_lease, read_outcome
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import (
    RESTORE_FOLDER,
    RestorePoint,
    record_names,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    MANAGED_UNITS,
    ROLE_LABEL,
    RUN_LABEL,
    CommandRunner,
    containers,
    run_command,
    units,
)

STATE_FOLDER = "/var/lib/dgxspark/state"
_KIB_PER_GIB = 1024**2


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as handle:
            return dict(json.load(handle))
    except (FileNotFoundError, ValueError):
        return {}


def _memory(proc_root: str) -> dict[str, float]:
    with open(f"{proc_root}/meminfo", encoding="ascii") as handle:
        values = {line.split(":")[0]: int(line.split()[1]) for line in handle}
    return {
        "total_gib": round(values["MemTotal"] / _KIB_PER_GIB, 1),
        "available_gib": round(values["MemAvailable"] / _KIB_PER_GIB, 1),
    }


def _tail(unit: str, lines: int, run: CommandRunner) -> list[str]:
    if not lines:
        return []
    done = run(["journalctl", "--unit", unit, "--lines", str(lines), "--no-pager", "--output", "cat"])
    return done.stdout.splitlines()


def look(
    log_lines: int, run: CommandRunner = run_command, proc_root: str = "/proc", restore_folder: str = RESTORE_FOLDER
) -> dict[str, Any]:
    """Raises WorkloadError when Docker or systemd does not answer."""
    present = [unit for unit in units(MANAGED_UNITS, run) if unit.exists]
    lease = read_lease(restore_folder)
    points = [RestorePoint.load(name, restore_folder) for name in record_names(restore_folder)]
    return {
        "deployment": _read_json(f"{STATE_FOLDER}/deployment.json"),
        "canary": _read_json(f"{STATE_FOLDER}/canary.json"),
        "units": [{**unit.as_dict(), "log": _tail(unit.name, log_lines, run)} for unit in present],
        "containers": [
            {
                "name": item.name,
                "state": item.state,
                "started_at": item.started_at,
                "image_id": item.image_id,
                "role": item.labels.get(ROLE_LABEL, ""),
                "run": item.labels.get(RUN_LABEL, ""),
            }
            for item in containers(run)
            if item.managed
        ],
        "memory": _memory(proc_root),
        "restore_points": [
            {"name": name, "created": point.created, "holds": point.names}
            for name, point in zip(record_names(restore_folder), points, strict=True)
        ],
        "run_at_work": lease.as_dict() if lease else None,
        "last_restore": read_outcome(restore_folder),
    }


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def describe_status(status: Mapping[str, Any]) -> list[str]:
    """The lines about one host, for a terminal."""
    deployment = status["deployment"]
    memory = status["memory"]
    lines = [
        f"serves {deployment.get('preset')} since run {deployment.get('run')}"
        if deployment
        else "no accepted deployment",
        f"memory: {memory['available_gib']} of {memory['total_gib']} GiB available",
    ]
    for unit in status["units"]:
        lines.append(f"{unit['name']}: {unit['active']} ({unit['sub']}), {unit['enabled']}")
        lines += [f"    {line}" for line in unit["log"]]
    for item in status["containers"]:
        lines.append(f"container {item['name']}: {item['state']} since {item['started_at'][:19]}, {item['role']}")
    canary = status["canary"]
    if canary:
        lines.append("canary: " + ", ".join(f"{key} {value}" for key, value in sorted(canary.items())))
    if status["run_at_work"]:
        lease = status["run_at_work"]
        lines.append(
            f"run {lease['run']} is at work since {_at(lease['since'])}; restores itself in {lease['seconds_left']} s"
        )
    for point in status["restore_points"]:
        lines.append(
            f"restore point {point['name']} of {_at(point['created'])}: {', '.join(point['holds']) or 'nothing ran'}"
        )
    last = status["last_restore"]
    if last:
        lines.append(f"run {last['run']} was undone at {_at(last['at'])}: {last['reason']}")
        lines += [f"    does not run as before: {problem}" for problem in last["problems"]]
    return lines
