# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What runs on a host: containers and systemd units, seen and handled through C(docker) and C(systemctl).

PRIVATE to this collection. Standard library only: it also runs where role host_setup has not been yet, and the restore
point must not depend on libraries that a failed run may have left half installed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# A command that manages one service and takes longer than this hangs: systemd's own default stop timeout is 90 s.
COMMAND_TIMEOUT_SECONDS = 120

MANAGED_LABEL = "io.dgxspark.serving.managed"
RUN_LABEL = "io.dgxspark.serving.run"
ROLE_LABEL = "io.dgxspark.serving.role"
RANK_LABEL = "io.dgxspark.serving.rank"
MANAGED_UNITS = ("dgxspark-vllm.service", "dgxspark-ray.service")


class WorkloadError(Exception):
    """A container or unit could not be looked at or handled; the message says what was tried and what came back."""


@dataclass(frozen=True)
class CommandResult:
    returncode: int
    stdout: str
    stderr: str


CommandRunner = Callable[[Sequence[str]], CommandResult]


def run_command(argv: Sequence[str]) -> CommandResult:
    """Run one command; one that is missing or hangs gives a result with the shell's own codes 127 and 124."""
    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_SECONDS, check=False)
    except FileNotFoundError as error:
        return CommandResult(127, "", str(error))
    except subprocess.TimeoutExpired:
        return CommandResult(124, "", f"{argv[0]} gave no answer in {COMMAND_TIMEOUT_SECONDS} s")
    return CommandResult(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Container:
    """state: as Docker names it (running, paused, exited, created); ports: published or of the host's network when known."""

    id: str
    name: str
    image: str
    image_id: str
    state: str
    started_at: str
    restart_policy: str
    pid: int
    labels: Mapping[str, str] = field(default_factory=dict)
    published_ports: tuple[int, ...] = ()

    @property
    def managed(self) -> bool:
        return MANAGED_LABEL in self.labels

    @property
    def alive(self) -> bool:
        return self.state in ("running", "paused", "restarting")

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "image": self.image,
            "state": self.state,
            "started_at": self.started_at,
            "restart_policy": self.restart_policy,
            "managed": self.managed,
            "labels": dict(self.labels),
        }


@dataclass(frozen=True)
class Unit:
    """load: loaded or not-found; active: active, inactive, failed, ...; enabled: enabled, disabled, static, ... or empty."""

    name: str
    load: str
    active: str
    sub: str
    enabled: str
    start_command: str = ""

    @property
    def exists(self) -> bool:
        return self.load == "loaded"

    @property
    def running(self) -> bool:
        return self.active in ("active", "activating", "reloading")

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "active": self.active, "sub": self.sub, "enabled": self.enabled}


def _checked(run: CommandRunner, argv: Sequence[str], attempt: str) -> str:
    result = run(argv)
    if result.returncode:
        detail = (result.stderr or result.stdout).strip().splitlines()
        raise WorkloadError(
            f"Cannot {attempt}: {' '.join(argv[:3])} ended with {result.returncode}: {detail[-1] if detail else 'no output'}"
        )
    return result.stdout


def _container(inspected: Mapping[str, Any]) -> Container:
    ports = []
    for bindings in (inspected.get("NetworkSettings", {}).get("Ports") or {}).values():
        ports += [int(binding["HostPort"]) for binding in bindings or () if binding.get("HostPort")]
    state = inspected["State"]
    return Container(
        id=inspected["Id"],
        name=inspected["Name"].lstrip("/"),
        image=inspected["Config"].get("Image", ""),
        image_id=inspected.get("Image", ""),
        state=state["Status"],
        started_at=state.get("StartedAt", ""),
        restart_policy=(inspected["HostConfig"].get("RestartPolicy") or {}).get("Name") or "no",
        pid=int(state.get("Pid") or 0),
        labels=inspected["Config"].get("Labels") or {},
        published_ports=tuple(sorted(set(ports))),
    )


def containers(run: CommandRunner = run_command) -> list[Container]:
    """All containers of the engine, the stopped ones too, by name.

    Raises WorkloadError when the engine does not answer.
    """
    ids = _checked(run, ["docker", "ps", "--all", "--quiet", "--no-trunc"], "list the containers").split()
    if not ids:
        return []
    result = run(["docker", "inspect", "--type", "container", *ids])
    # One that ended in between makes docker inspect fail and still print all others.
    try:
        inspected = json.loads(result.stdout or "[]")
    except ValueError as error:
        raise WorkloadError(f"Cannot read the containers: docker inspect printed no JSON: {error}") from error
    return sorted((_container(item) for item in inspected), key=lambda item: item.name)


_UNIT_PROPERTIES = ("Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "ExecStart")


def units(names: Sequence[str], run: CommandRunner = run_command) -> list[Unit]:
    """The named units, in the order given; one that does not exist has C(exists) False. A name without a suffix is a service."""
    wanted = [name if "." in name else f"{name}.service" for name in names]
    if not wanted:
        return []
    text = _checked(
        run,
        ["systemctl", "show", *wanted, f"--property={','.join(_UNIT_PROPERTIES)}"],
        f"look at unit {', '.join(wanted)}",
    )
    # One block per unit, in the order asked for, with an empty line between.
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in text.split("\n\n")]
    blocks += [{}] * (len(wanted) - len(blocks))
    return [
        Unit(
            full,
            values.get("LoadState", ""),
            values.get("ActiveState", ""),
            values.get("SubState", ""),
            values.get("UnitFileState", ""),
            values.get("ExecStart", ""),
        )
        for full, values in zip(wanted, blocks, strict=False)
    ]


def stop_unit(name: str, run: CommandRunner = run_command) -> None:
    _checked(run, ["systemctl", "stop", name], f"stop unit {name}")


def start_unit(name: str, run: CommandRunner = run_command) -> None:
    _checked(run, ["systemctl", "start", name], f"start unit {name}")


def enable_unit(name: str, enabled: bool, run: CommandRunner = run_command) -> None:
    verb = "enable" if enabled else "disable"
    _checked(run, ["systemctl", verb, name], f"{verb} unit {name}")


def reload_systemd(run: CommandRunner = run_command) -> None:
    _checked(run, ["systemctl", "daemon-reload"], "reload systemd")


def stop_container(identifier: str, run: CommandRunner = run_command) -> None:
    _checked(run, ["docker", "stop", identifier], f"stop container {identifier}")


def start_container(identifier: str, run: CommandRunner = run_command) -> None:
    _checked(run, ["docker", "start", identifier], f"start container {identifier}")


def pause_container(identifier: str, run: CommandRunner = run_command) -> None:
    _checked(run, ["docker", "pause", identifier], f"pause container {identifier}")


def set_restart_policy(identifier: str, policy: str, run: CommandRunner = run_command) -> None:
    _checked(
        run,
        ["docker", "update", f"--restart={policy}", identifier],
        f"set the restart policy of container {identifier}",
    )


def remove_container(identifier: str, run: CommandRunner = run_command) -> None:
    _checked(run, ["docker", "rm", "--force", identifier], f"remove container {identifier}")
