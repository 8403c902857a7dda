# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The user's lists spark_stop and spark_keep: what do they name, and who is on neither?

PRIVATE to this collection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import MANAGED_LABEL, MANAGED_UNITS

_INTERPRETER = re.compile(r"^(python[\d.]*|bash|sh|dash|node|perl|ruby)$")
_SINGULAR = {"units": "unit", "containers": "container", "processes": "process"}
STOP, KEEP, OURS, UNLISTED = "stop", "keep", "ours", "unlisted"


@dataclass(frozen=True)
class Selection:
    """One of the two lists. labels: C(key) or C(key=value); processes: the name of a command, compared whole."""

    units: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, lists: Mapping[str, Sequence[str]] | None) -> Selection:
        given = lists or {}
        units = tuple(name if "." in name else f"{name}.service" for name in given.get("units") or ())
        return cls(
            units,
            tuple(given.get("containers") or ()),
            tuple(given.get("images") or ()),
            tuple(given.get("labels") or ()),
            tuple(given.get("processes") or ()),
        )

    def names_container(self, name: str, image: str, labels: Mapping[str, str]) -> bool:
        """Is a container named, by its name, its image (with or without the tag) or one of its labels?"""
        if name in self.containers:
            return True
        if image and (image in self.images or image.rsplit(":", 1)[0] in self.images):
            return True
        for wanted in self.labels:
            key, _separator, value = wanted.partition("=")
            if key in labels and (not value or labels[key] == value):
                return True
        return False

    def names_unit(self, unit: str) -> bool:
        return bool(unit) and unit in self.units

    def names_process(self, command: str, name: str = "") -> bool:
        """command: the whole command line; name: the kernel's short name of the process."""
        if not command:
            return False
        return not {command, command.split()[0], process_title(command), name}.isdisjoint(self.processes)


def process_title(command: str) -> str:
    """Under which a process goes on a list: its program, and for an interpreter the script or module that it runs.

    An interpreter is nobody: C(python3 /opt/train.py) is train.py, C(python3 -m jupyterlab) is jupyterlab.
    """
    words = command.split() or ["unknown"]
    program = words[0].rsplit("/", 1)[-1]
    if not _INTERPRETER.match(program):
        return program
    arguments = iter(words[1:])
    for word in arguments:
        if word == "-m":
            return next(arguments, program)
        if word == "-c":
            return program
        if word in ("-X", "-W"):
            next(arguments, "")
        elif not word.startswith("-"):
            return word.rsplit("/", 1)[-1]
    return program


def classify(holder: Mapping[str, Any], stop: Selection, keep: Selection, unit_containers: Mapping[str, str]) -> str:
    """Whose is a holder of memory or of a port: V(ours), V(keep), V(stop) or V(unlisted)?

    holder: a holder of gpu_memory_check or a listener of host_survey; torn_down: the planned teardown stops it.
    unit_containers: container name to the unit that runs it.
    The keep-list wins: what is on it is never stopped, whatever else names it.
    """
    name = str(holder.get("container") or "")
    labels = holder.get("labels") or {}
    units = {str(holder.get("systemd_unit") or ""), unit_containers.get(name, "")} - {""}
    command = str(holder.get("title") or holder.get("process") or "")
    if MANAGED_LABEL in labels or units & set(MANAGED_UNITS):
        return OURS
    if holder.get("torn_down"):
        return STOP
    for selection, answer in ((keep, KEEP), (stop, STOP)):
        if (name and selection.names_container(name, str(holder.get("image") or ""), labels)) or any(
            selection.names_unit(unit) for unit in units
        ):
            return answer
        # A process in a container or unit ends with that, and only with that.
        if selection.names_process(command) and (answer == KEEP or not (name or units)):
            return answer
    return UNLISTED


def _identity(holder: Mapping[str, Any], unit_containers: Mapping[str, str]) -> tuple[str, str]:
    """(kind, name) under which a user would put the holder on a list: its unit before its container before its command."""
    container = str(holder.get("container") or "")
    unit = unit_containers.get(container, "") or str(holder.get("systemd_unit") or "")
    if unit:
        return "units", unit
    if container:
        return "containers", container
    return "processes", str(holder.get("title") or "") or process_title(str(holder.get("process") or ""))


def with_container_details(
    holders: Sequence[Mapping[str, Any]], containers: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The holders of gpu_memory_check with name, image and labels of their containers, which it cannot see without the Docker SDK."""
    by_id = {str(container["id"]): container for container in containers}
    detailed = []
    for holder in holders:
        container = by_id.get(str(holder.get("container_id") or ""))
        details = (
            {"container": container["name"], "image": container["image"], "labels": container["labels"]}
            if container
            else {}
        )
        detailed.append({**holder, **details})
    return detailed


def stoppable_unlisted(
    holders: Sequence[Mapping[str, Any]], stop: Selection, keep: Selection, unit_containers: Mapping[str, str]
) -> list[str]:
    """Names of units and containers that hold something, are on neither list, and can be brought back after a stop."""
    names = []
    for holder in holders:
        kind, name = _identity(holder, unit_containers)
        if (
            classify(holder, stop, keep, unit_containers) == UNLISTED
            and kind != "processes"
            and not holder.get("graphics")
        ):
            names.append(name)
    return sorted(set(names))


def memory_finding(
    host: str,
    holders: Sequence[Mapping[str, Any]],
    memory: Mapping[str, Any],
    utilization: float,
    stop: Selection,
    keep: Selection,
    unit_containers: Mapping[str, str],
    also_stopped: Sequence[str],
) -> list[Finding]:
    """Would the engine's share of the memory be free once everything is stopped that will be? All values in GiB."""
    freed = 0.0
    for holder in holders:
        owner = classify(holder, stop, keep, unit_containers)
        if owner in (STOP, OURS) or _identity(holder, unit_containers)[1] in also_stopped:
            freed += float(holder.get("used_gib") or 0)
    needed = utilization * float(memory["total_gib"])
    available = float(memory["available_gib"])
    if available + freed >= needed:
        return _page_cache_in_the_way(host, memory, freed, needed)
    kept = [
        f"{_identity(holder, unit_containers)[1]} ({holder.get('used_gib') or 0:.1f} GiB)"
        for holder in holders
        if classify(holder, stop, keep, unit_containers) == KEEP
    ]
    return [
        Finding(
            "HOLDER.MEMORY_WILL_NOT_FIT",
            ERROR,
            host,
            f"Utilization {utilization} needs {needed:.1f} GiB; {available:.1f} GiB are available and the teardown would free "
            f"{freed:.1f} GiB." + (f" Kept: {', '.join(kept)}." if kept else ""),
            "Lower spark_utilization, or keep less.",
        )
    ]


def _page_cache_in_the_way(host: str, memory: Mapping[str, Any], freed: float, needed: float) -> list[Finding]:
    """There is room, but CUDA and older engines count page cache as used."""
    free = float(memory["free_gib"])
    if free + freed >= needed:
        return []
    return [
        Finding(
            "MEMORY.PAGE_CACHE",
            WARNING,
            host,
            f"The engine will want {needed:.1f} GiB; {free + freed:.1f} GiB would be free after the teardown, and "
            f"{float(memory['reclaimable_gib']):.1f} GiB more are page cache, used in the eyes of CUDA and of older engines.",
            "Nothing needs to be stopped for it: gate 6 drops the page cache (by hand: gpu_memory_check with drop_caches=true).",
            f"free {free:.2f} GiB, available {float(memory['available_gib']):.2f} GiB",
        )
    ]


def _lines_to_paste(kind: str, name: str) -> str:
    return f"spark_stop: {{{kind}: [{name}]}}   # to stop it\nspark_keep: {{{kind}: [{name}]}}   # to keep it"


def unlisted_findings(
    host: str,
    holders: Sequence[Mapping[str, Any]],
    listeners: Sequence[Mapping[str, Any]],
    stop: Selection,
    keep: Selection,
    unit_containers: Mapping[str, str],
    unlisted: str,
) -> list[Finding]:
    """Findings about holders of GPU memory and of needed ports, for one host.

    unlisted: V(fail) or V(stop), the user's spark_unlisted_holders. A needed port that the keep-list protects is an error in
    any case: both cannot have it.
    """
    findings = []
    for what, entries in (("memory", holders), ("port", listeners)):
        for entry in entries:
            owner = classify(entry, stop, keep, unit_containers)
            kind, name = _identity(entry, unit_containers)
            held = (
                f"{entry.get('used_gib') or 0:.1f} GiB of GPU memory"
                if what == "memory"
                else f"port {entry.get('port')}"
            )
            who = f"{_SINGULAR[kind]} {name}, pid {entry.get('pid')}, user {entry.get('user') or 'unknown'}"
            if what == "port" and owner == KEEP:
                findings.append(
                    Finding(
                        "HOLDER.PORT_KEPT",
                        ERROR,
                        host,
                        f"{held} is needed, and is held by {who}, which is on the keep-list.",
                        "Take the holder off spark_keep, or move one of the two: the API with spark_api_port, another holder by its own setting.",
                    )
                )
            elif owner == UNLISTED:
                stoppable = unlisted == "stop" and kind != "processes" and not entry.get("graphics")
                findings.append(
                    Finding(
                        f"HOLDER.{what.upper()}_UNLISTED",
                        INFO if stoppable else ERROR,
                        host,
                        f"{held} is held by {who}, which is on neither list{'; it will be stopped' if stoppable else ''}.",
                        "" if stoppable else _lines_to_paste(kind, name),
                        str(entry.get("process") or ""),
                    )
                )
    return findings


def unidentified(
    host: str, holders: Sequence[Mapping[str, Any]], listeners: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """What an unprivileged user cannot put to a list: (these entries, a finding for each)."""
    unknown, findings = [], []
    for what, entries in (("memory", holders), ("port", listeners)):
        for entry in entries:
            if entry.get("pid") and not (entry.get("container_id") and not entry.get("container")):
                continue
            held = (
                f"{entry.get('used_gib') or 0:.1f} GiB of GPU memory"
                if what == "memory"
                else f"port {entry.get('port')}"
            )
            who = f"container {str(entry['container_id'])[:12]}" if entry.get("container_id") else "somebody"
            unknown.append(dict(entry))
            findings.append(
                Finding(
                    "HOLDER.NOT_IDENTIFIED",
                    WARNING,
                    host,
                    f"{held} is held by {who}, whose name this user may not see: whether it is on one of the lists is not known.",
                    "Use become (--ask-become-pass) to see who it is.",
                )
            )
    return unknown, findings
