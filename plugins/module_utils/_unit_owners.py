# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which unit runs which container: stopping the one without the other stops too little.

PRIVATE to this collection. Standard library only, it is part of a host program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import Container, Unit

# A start script is a page or two; more than this is a program.
_SCRIPT_BYTES = 64 * 1024
# systemctl show prints ExecStart={ path=... ; argv[]=docker run --name X ... ; ignore_errors=no ; ...}.
_ARGUMENTS = re.compile(r"argv\[\]=(.*?) ; ")
_RUN_NAME = re.compile(r"\bdocker\s+(?:container\s+)?(?:run|create)\b[^\n;&|]*?\s--name[= ][\"']?([\w.-]+)")
_START_NAMES = re.compile(r"\bdocker\s+(?:container\s+)?(?:re)?start\s+([^\n;&|]+)")
_STARTS_CONTAINERS = re.compile(r"\bdocker(?:\s+compose|-compose|\s+(?:container\s+)?(?:run|start|restart|create))\b")
_COMPOSE = re.compile(r"\bdocker(?:\s+|-)compose\b([^\n;&|]*)\s(?:up|start|run)\b")
_COMPOSE_PROJECT = re.compile(r"(?:-p|--project-name)[= ]([\w.-]+)")
_COMPOSE_FILE = re.compile(r"(?:-f|--file)[= ](\S+)")


def _arguments(unit: Unit) -> str:
    return "\n".join(_ARGUMENTS.findall(f"{unit.start_command} ; ")) or unit.start_command


def _scripts(arguments: str) -> list[str]:
    """Texts of the scripts among the words of a command."""
    texts = []
    for word in dict.fromkeys(arguments.split()):
        if not word.startswith("/") or not os.path.isfile(word) or os.path.getsize(word) > _SCRIPT_BYTES:
            continue
        try:
            with open(word, "rb") as handle:
                content = handle.read()
        except OSError:
            continue
        if b"\0" not in content:
            # A command may go on in the next line.
            texts.append(content.decode(errors="replace").replace("\\\n", " "))
    return texts


def _names(text: str, name: str) -> bool:
    return bool(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text))


def _compose_projects(text: str, unit: Unit) -> set[str]:
    """Names of the compose projects that a command brings up; without a name it is that of the folder (Compose's own rule)."""
    projects = set()
    for options in _COMPOSE.findall(text):
        named = _COMPOSE_PROJECT.search(options)
        file = _COMPOSE_FILE.search(options)
        folder = os.path.dirname(file.group(1)) if file and file.group(1).startswith("/") else unit.working_directory
        name = named.group(1) if named else os.path.basename(folder.rstrip("/"))
        projects.add(re.sub(r"[^a-z0-9_-]", "", name.lower()))
    return projects - {""}


def runs_itself(unit: Unit, containers: Iterable[Container]) -> list[Container]:
    """The containers that a unit's own command starts: it ends with them, and brings them back."""
    text = _arguments(unit)
    names = set(_RUN_NAME.findall(text))
    for words in _START_NAMES.findall(text):
        names |= {word for word in words.split() if not word.startswith("-")}
    projects = _compose_projects(text, unit)
    return [item for item in containers if item.name in names or (item.compose_project in projects and projects)]


def starts_by_script(unit: Unit, containers: Sequence[Container]) -> list[Container]:
    """The containers that a script of the unit starts: stopping the unit may leave them running."""
    found: dict[str, Container] = {}
    for text in [_arguments(unit), *_scripts(_arguments(unit))]:
        if not _STARTS_CONTAINERS.search(text):
            continue
        projects = _compose_projects(text, unit)
        for item in containers:
            if _names(text, item.name) or (item.compose_project and item.compose_project in projects):
                found[item.id] = item
    return list(found.values())


def mentioned_by(name: str, candidates: Iterable[Unit]) -> list[str]:
    """Units whose command or script names C(name), a container or a unit without its suffix: one of them may bring it back."""
    bare = name.removesuffix(".service")
    return [
        unit.name
        for unit in candidates
        if unit.name != name
        and any(_names(text, name) or _names(text, bare) for text in [_arguments(unit), *_scripts(_arguments(unit))])
    ]


def unit_of_container(services: Iterable[Unit], containers: Sequence[Container]) -> dict[str, str]:
    """Container name to the running unit whose own command runs it."""
    return {
        item.name: unit.name
        for unit in services
        if unit.running
        for item in runs_itself(unit, containers)
        if item.alive
    }
