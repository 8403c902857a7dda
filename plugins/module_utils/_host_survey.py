# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host is, what runs on it and whether it has what a plan needs, before any library has been brought to it.

PRIVATE to this collection.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _earlyoom as earlyoom
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_disks as disks
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_kernel as kernel
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_runtime as runtime
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._host_firewall import addresses_let_in, read_firewalls
from ansible_collections.dgxspark.serving.plugins.module_utils._host_needs import Needs
from ansible_collections.dgxspark.serving.plugins.module_utils._host_reach import judge_kept, judge_ssh, ssh_port
from ansible_collections.dgxspark.serving.plugins.module_utils._hub_cache import locate
from ansible_collections.dgxspark.serving.plugins.module_utils._listeners import listeners
from ansible_collections.dgxspark.serving.plugins.module_utils._port_probe import run_probe
from ansible_collections.dgxspark.serving.plugins.module_utils._probe_memory import PROBE_FILE
from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import process_owner
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_state import judge_restore_state
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import Selection
from ansible_collections.dgxspark.serving.plugins.module_utils._teardown import missing_findings, plan_teardown
from ansible_collections.dgxspark.serving.plugins.module_utils._unit_owners import unit_of_container
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandRunner,
    Container,
    WorkloadError,
    containers,
    loaded_services,
    once_each,
    run_command,
    units,
)

# The modules of this collection are written for it (tests/config.yml).
OLDEST_PYTHON = (3, 10)
# The oldest engine that the lab runs; API 1.41.
OLDEST_DOCKER = (20, 10)
# What the ladder has learned on the head (role vllm_serve).
LADDER_FILE = "/var/lib/dgxspark/state/ladder.json"
# Which digest and id the images had that were chosen (module remembered_choice).
CHOICES_FILE = "/var/lib/dgxspark/state/images.json"
LIBRARY_DIGEST_FILE = ".digest"


@dataclass
class Survey:
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


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
        if os.geteuid() and "permission denied" in reason.lower():
            survey.unseen.append("the Docker Engine and its containers")
            return
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
        "rootless": any("rootless" in option for option in info.get("SecurityOptions") or ()),
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


def _listening(ports: Collection[int], found: Sequence[Container], proc_root: str) -> list[dict[str, Any]]:
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


def _system(subject: str, library_folder: str, proc_root: str, survey: Survey) -> None:
    command_line = kernel.read_text(f"{proc_root}/cmdline").strip()
    survey.facts.update(
        architecture=platform.machine(),
        kernel=platform.release(),
        command_line=command_line,
        operating_system=kernel.operating_system(kernel.read_text("/etc/os-release")),
        python=platform.python_version(),
        hostname=platform.node(),
        clock=time.time(),
        library_digest=kernel.read_text(f"{library_folder}/{LIBRARY_DIGEST_FILE}").strip(),
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
    meminfo = kernel.read_text(f"{proc_root}/meminfo")
    survey.findings += kernel.judge_kernel(subject, platform.release(), command_line, meminfo)


def _workloads(subject: str, unit_names: Sequence[str], run: CommandRunner, survey: Survey) -> list[Container]:
    found: list[Container] = []
    looked_at = []
    try:
        if survey.facts["docker"]:
            found = containers(run)
        wanted = list(dict.fromkeys((*unit_names, *kernel.MEMORY_KILLERS)))
        looked_at = [unit for unit in units(wanted, run) if unit.exists]
        survey.facts["unit_containers"] = unit_of_container([*loaded_services(run), *looked_at], found)
    except WorkloadError as error:
        survey.findings.append(
            Finding("HOST.WORKLOADS_UNKNOWN", ERROR, subject, str(error), "See the log of the service named above.")
        )
    survey.facts["containers"] = [item.as_dict() for item in found]
    survey.facts["units"] = [unit.as_dict() for unit in looked_at]
    survey.facts.setdefault("unit_containers", {})
    steered = [earlyoom.UNIT] if not survey.facts["earlyoom"].get("to_steer", True) else []
    survey.findings += kernel.judge_killers(subject, survey.facts["units"], steered)
    return found


def _teardown(needs: Needs, run: CommandRunner, proc_root: str, survey: Survey) -> None:
    """What gate 5 will stop and keep; its refusals are errors already here."""
    if needs.stop is None or not survey.facts["docker"]:
        return
    try:
        lists = Selection.parse(needs.stop), Selection.parse(needs.keep)
        teardown = plan_teardown(*lists, (), needs.end_orphans, run, proc_root)
    except WorkloadError:
        return  # Said by _workloads.
    survey.facts["teardown"] = {
        "stop": teardown.names,
        "keep": list(teardown.kept),
        "missing": list(teardown.missing),
        "processes": [process.pid for process in teardown.processes],
    }
    survey.findings += [*teardown.findings, *missing_findings(teardown)]


def _disks(subject: str, needs: Needs, survey: Survey) -> None:
    docker_root = survey.facts["docker"].get("root")
    paths = dict(needs.paths)
    if needs.repository is not None:
        survey.facts["model"] = locate(paths["model"], needs.repository)
        paths["model"] = survey.facts["model"]["folder"]
    measured = {**paths, **({"docker": docker_root} if docker_root else {})}
    survey.facts["disks"] = {name: disks.measure(path) for name, path in measured.items()}
    for name, needed in needs.needed_gib.items():
        present = disks.weights_gib(measured[name])
        survey.facts["disks"][name].update(needed_gib=needed, present_gib=round(present, 2))
        survey.findings += disks.judge_room(subject, name, survey.facts["disks"][name], needed, present)


def _containers_get_what_they_need(subject: str, wishes: runtime.ContainerWishes, survey: Survey) -> None:
    docker = survey.facts["docker"]
    specifications = runtime.cdi_specifications()
    survey.facts["cdi"] = specifications
    survey.findings += runtime.judge_gpu_runtime(subject, wishes.gpu_arguments, docker, specifications)
    survey.findings += runtime.judge_devices(subject, wishes)
    survey.findings += runtime.judge_shared_memory(subject, disks.measure(runtime.SHARED_MEMORY)["total_gib"])
    settings = ["/etc/systemd/logind.conf", *sorted(glob.glob("/etc/systemd/logind.conf.d/*.conf"))]
    remove_ipc = kernel.removes_ipc(kernel.read_text(path) for path in settings)
    survey.findings += kernel.judge_rootless(subject, bool(docker.get("rootless")), remove_ipc)


def _notes(subject: str, path: str, survey: Survey) -> dict[str, Any]:
    """What an earlier run has noted; a file that is damaged costs that, and no deployment: it is found out again."""
    try:
        return dict(json.loads(kernel.read_text(path) or "{}"))
    except (ValueError, TypeError) as error:
        survey.findings.append(
            Finding(
                "HOST.NOTES_DAMAGED",
                WARNING,
                subject,
                f"{path} cannot be read ({error}): what an earlier run has learned or chosen is not used.",
                f"Remove it: sudo rm {path}. It is written anew.",
            )
        )
        return {}


def _firewall(subject: str, needs: Needs, found: Sequence[Container], proc_root: str, survey: Survey) -> None:
    if not needs.closed:
        return
    survey.findings += judge_ssh(subject, ssh_port(proc_root), needs.closed)
    kept = survey.facts.get("teardown", {}).get("keep")
    if kept:
        ports = {port for first, last in needs.closed for port in range(first, last + 1)}
        survey.findings += judge_kept(subject, _listening(ports, found, proc_root), kept)
    if not shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin"):
        survey.findings.append(
            Finding(
                "HOST.NFT_MISSING",
                ERROR,
                subject,
                "The program nft is not installed, and the ports of Ray and the engine are to be closed to other networks.",
                "apt install nftables, or set spark_firewall: false and close them in another way.",
            )
        )


def _say_what_is_unseen(subject: str, survey: Survey) -> None:
    if survey.facts["listeners"] and not all(row["pid"] for row in survey.facts["listeners"]):
        survey.unseen.append("whose processes hold ports")
    if survey.facts.get("firewalls", {}).get("readable") is False:
        survey.unseen.append("the rules of the firewall")
    survey.facts["unseen"] = survey.unseen
    if os.geteuid() and survey.unseen:
        survey.findings.append(
            Finding(
                "HOST.UNPRIVILEGED",
                WARNING,
                subject,
                f"Looked without root's rights; not seen: {', '.join(survey.unseen)}.",
                "Use become (--ask-become-pass) to see all of it.",
            )
        )


def survey_host(
    subject: str,
    needs: Needs,
    library_folder: str,
    wishes: runtime.ContainerWishes | None = None,
    run: CommandRunner = run_command,
    proc_root: str = "/proc",
    brief: bool = False,
) -> Survey:
    """Everything of gates 0 and 2 that needs no library. C(wishes): None where no containers are planned yet; brief: only the
    system, the Docker Engine and earlyoom.
    """
    survey = Survey()
    _system(subject, library_folder, proc_root, survey)
    # Several parts ask the same; within one look the answer is the same.
    run = once_each(run)
    _docker(subject, run, survey)
    survey.facts["earlyoom"] = earlyoom.look(run, proc_root)
    survey.facts["firewall_lets_in"] = addresses_let_in(run)
    if brief:
        return survey
    found = _workloads(subject, needs.units, run, survey)
    _teardown(needs, run, proc_root, survey)
    survey.facts["learned"] = _notes(subject, LADDER_FILE, survey)
    survey.facts["remembered"] = _notes(subject, CHOICES_FILE, survey)
    survey.facts["probed"] = _notes(subject, PROBE_FILE, survey)
    if os.geteuid() == 0:
        survey.findings += judge_restore_state(subject)
    survey.facts["images"] = disks.local_images(needs.images, run) if survey.facts["docker"] else {}
    survey.facts["listeners"] = _listening(needs.ports, found, proc_root)
    _disks(subject, needs, survey)
    _firewall(subject, needs, found, proc_root, survey)
    if wishes:
        _containers_get_what_they_need(subject, wishes, survey)
    if needs.probe:
        survey.facts["firewalls"] = read_firewalls(run)
        survey.facts["probe"] = run_probe(needs.probe)
    _say_what_is_unseen(subject, survey)
    return survey
