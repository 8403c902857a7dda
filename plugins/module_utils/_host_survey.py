# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host is and what runs on it, before any library has been brought to it.

PRIVATE to this collection.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._listeners import listeners
from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import process_owner
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import container_of_unit
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandRunner,
    Container,
    WorkloadError,
    containers,
    run_command,
    units,
)

GIB = 1024**3
# The modules of this collection are written for it (tests/config.yml).
OLDEST_PYTHON = (3, 10)
# The oldest engine that the lab runs; API 1.41.
OLDEST_DOCKER = (20, 10)
LIBRARY_DIGEST_FILE = ".digest"


@dataclass
class Survey:
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def _disk(path: str) -> dict[str, Any]:
    """Free and total GiB of the file system that holds C(path), or would hold it."""
    existing = os.path.abspath(path)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    usage = shutil.disk_usage(existing)
    return {
        "path": path,
        "exists": os.path.exists(path),
        "total_gib": round(usage.total / GIB, 2),
        "free_gib": round(usage.free / GIB, 2),
    }


def _docker(subject: str, run: CommandRunner, survey: Survey) -> None:
    result = run(["docker", "info", "--format", "{{json .}}"])
    if result.returncode == 127:
        survey.facts["docker"] = {}
        survey.findings.append(
            Finding(
                "HOST.DOCKER_MISSING",
                ERROR,
                subject,
                "Docker is not installed.",
                "Install Docker Engine 20.10 or newer.",
            )
        )
        return
    try:
        info = json.loads(result.stdout or "{}")
    except ValueError:
        info = {}
    version = str(info.get("ServerVersion") or "")
    if not version:
        errors = [*(info.get("ServerErrors") or ()), *result.stderr.strip().splitlines()]
        reason = errors[-1] if errors else "no answer"
        survey.facts["docker"] = {}
        survey.findings.append(
            Finding(
                "HOST.DOCKER_NOT_RUNNING",
                ERROR,
                subject,
                f"The Docker Engine does not answer: {reason}",
                "Start it: systemctl start docker (its log: journalctl -u docker).",
                reason,
            )
        )
        return
    survey.facts["docker"] = {
        "version": version,
        "root": info.get("DockerRootDir", ""),
        "storage_driver": info.get("Driver", ""),
        "runtimes": sorted(info.get("Runtimes") or {}),
    }
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_DOCKER:
        survey.findings.append(
            Finding(
                "HOST.DOCKER_OLD",
                ERROR,
                subject,
                f"Docker Engine {version} is older than 20.10.",
                "Update Docker Engine.",
            )
        )


def _listening(ports: Sequence[int], found: Sequence[Container], proc_root: str) -> list[dict[str, Any]]:
    by_id = {container.id: container for container in found}
    rows = []
    for entry in listeners(ports, proc_root):
        owner = process_owner(entry.pid, proc_root) if entry.pid else None
        container = by_id.get(owner.container_id) if owner else None
        # A published port belongs to docker-proxy, a process of the engine: the container is the one that publishes it.
        publisher = next((item for item in found if item.alive and entry.port in item.published_ports), None)
        container = container or publisher
        rows.append(
            {
                "port": entry.port,
                "address": entry.address,
                "pid": entry.pid,
                "process": owner.command if owner else "",
                "user": owner.user if owner else "",
                "systemd_unit": "" if publisher else (owner.systemd_unit if owner else ""),
                "container": container.name if container else "",
                "image": container.image if container else "",
                "labels": dict(container.labels) if container else {},
            }
        )
    return rows


def survey_host(
    subject: str,
    ports: Sequence[int],
    paths: Mapping[str, str],
    unit_names: Sequence[str],
    library_folder: str,
    run: CommandRunner = run_command,
    proc_root: str = "/proc",
) -> Survey:
    """Everything of gates 0 and 2 that needs no library. C(paths): name to path whose file system is measured."""
    survey = Survey()
    survey.facts.update(
        architecture=platform.machine(),
        kernel=platform.release(),
        python=platform.python_version(),
        hostname=platform.node(),
        library_digest=_library_digest(library_folder),
        containers=[],
        units=[],
        unit_containers={},
        listeners=[],
    )
    if sys.version_info[:2] < OLDEST_PYTHON:
        survey.findings.append(
            Finding(
                "HOST.PYTHON_OLD",
                ERROR,
                subject,
                f"Python {platform.python_version()} is older than 3.10.",
                "Install Python 3.10 or newer and set ansible_python_interpreter.",
            )
        )
    if not os.path.isdir("/run/systemd/system"):
        survey.findings.append(
            Finding(
                "HOST.SYSTEMD_MISSING",
                ERROR,
                subject,
                "systemd does not run here.",
                "Use a host that was booted with systemd.",
            )
        )
    _docker(subject, run, survey)
    found: list[Container] = []
    try:
        if survey.facts["docker"]:
            found = containers(run)
        looked_at = [unit for unit in units(unit_names, run) if unit.exists]
    except WorkloadError as error:
        survey.findings.append(
            Finding("HOST.WORKLOADS_UNKNOWN", ERROR, subject, str(error), "See the log of the service named above.")
        )
        looked_at = []
    survey.facts["containers"] = [item.as_dict() for item in found]
    survey.facts["units"] = [unit.as_dict() for unit in looked_at]
    survey.facts["unit_containers"] = {
        container_of_unit(unit.start_command): unit.name for unit in looked_at if container_of_unit(unit.start_command)
    }
    survey.facts["listeners"] = _listening(ports, found, proc_root)
    if os.geteuid() and survey.facts["listeners"] and not all(row["pid"] for row in survey.facts["listeners"]):
        survey.findings.append(
            Finding(
                "HOST.LISTENER_INVISIBLE",
                WARNING,
                subject,
                "Listening processes of other users are not visible to this user.",
                "Use become to see who holds a port.",
            )
        )
    docker_root = survey.facts["docker"].get("root")
    measured = {**paths, **({"docker": docker_root} if docker_root else {})}
    survey.facts["disks"] = {name: _disk(path) for name, path in measured.items()}
    return survey


def _library_digest(folder: str) -> str:
    try:
        with open(f"{folder}/{LIBRARY_DIGEST_FILE}", encoding="ascii") as handle:
            return handle.read().strip()
    except OSError:
        return ""
