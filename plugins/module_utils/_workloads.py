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

# A command that looks at something and takes longer than this hangs.
COMMAND_TIMEOUT_SECONDS = 120
# Stopping may take as long as the service's own TimeoutStopSec; 10 minutes are more than any engine that we know asks for.
STOP_TIMEOUT_SECONDS = 600

MANAGED_LABEL = "io.dgxspark.serving.managed"
RUN_LABEL = "io.dgxspark.serving.run"
ROLE_LABEL = "io.dgxspark.serving.role"
RANK_LABEL = "io.dgxspark.serving.rank"
# Units of a deployment, in the order of stopping. The restore timer is not among them: it outlives a failed deployment.
MANAGED_UNITS = (
    "dgxspark-canary.timer",
    "dgxspark-canary.service",
    "dgxspark-vllm.service",
    "dgxspark-ray.service",
    "dgxspark-memguard.service",
    "dgxspark-firewall.service",
)
_COMPOSE_PROJECT = "com.docker.compose.project"
_COMPOSE_SERVICE = "com.docker.compose.service"
_COMPOSE_DEPENDS_ON = "com.docker.compose.depends_on"


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
    seconds = STOP_TIMEOUT_SECONDS if "stop" in argv[1:2] else COMMAND_TIMEOUT_SECONDS
    try:
        # Programs of the host use it, too: there is no AnsibleModule.
        done = subprocess.run(list(argv), capture_output=True, text=True, timeout=seconds, check=False)  # pylint: disable=ansible-bad-function
    except FileNotFoundError as error:
        return CommandResult(127, "", str(error))
    except subprocess.TimeoutExpired:
        return CommandResult(124, "", f"{argv[0]} gave no answer in {seconds} s")
    return CommandResult(done.returncode, done.stdout, done.stderr)


def once_each(run: CommandRunner) -> CommandRunner:
    """Asks the same only once. Not for commands that change something, nor across something that changes."""
    answers: dict[tuple[str, ...], CommandResult] = {}

    def ask(argv: Sequence[str]) -> CommandResult:
        key = tuple(argv)
        if key not in answers:
            answers[key] = run(argv)
        return answers[key]

    return ask


@dataclass(frozen=True)
class Container:
    """state: as Docker names it (running, paused, exited, created); restart_policy: as C(docker run --restart) takes it.

    health: healthy, unhealthy, starting, or empty without a health check. auto_remove: it is gone once it is stopped.
    executed: number of processes that C(docker exec) has started in it; a start of the container does not bring them back.
    """

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
    health: str = ""
    auto_remove: bool = False
    executed: int = 0

    @property
    def compose_project(self) -> str:
        return str(self.labels.get(_COMPOSE_PROJECT, ""))

    @property
    def compose_service(self) -> str:
        return str(self.labels.get(_COMPOSE_SERVICE, ""))

    @property
    def compose_needs(self) -> tuple[str, ...]:
        """Services of its project that start before it; the label holds C(name:condition:restart) with commas between."""
        entries = str(self.labels.get(_COMPOSE_DEPENDS_ON, "")).split(",")
        return tuple(entry.split(":")[0] for entry in entries if entry)

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
    """load: loaded or not-found; active: active, inactive, failed, ...; enabled: enabled, disabled, static, ... or empty.

    triggered_by: sockets, timers and paths that start it. stops_with_it: units that systemd stops when this one is stopped.
    job: number of the job that systemd has queued for it, or empty.
    """

    name: str
    load: str
    active: str
    sub: str
    enabled: str
    start_command: str = ""
    triggered_by: tuple[str, ...] = ()
    stops_with_it: tuple[str, ...] = ()
    working_directory: str = ""
    job: str = ""

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
    settings = inspected["HostConfig"]
    policy = settings.get("RestartPolicy") or {}
    retries = int(policy.get("MaximumRetryCount") or 0)
    return Container(
        id=inspected["Id"],
        name=inspected["Name"].lstrip("/"),
        image=inspected["Config"].get("Image", ""),
        image_id=inspected.get("Image", ""),
        state=state["Status"],
        started_at=state.get("StartedAt", ""),
        restart_policy=(policy.get("Name") or "no") + (f":{retries}" if retries else ""),
        pid=int(state.get("Pid") or 0),
        labels=inspected["Config"].get("Labels") or {},
        published_ports=tuple(sorted(set(ports))),
        health=(state.get("Health") or {}).get("Status") or "",
        auto_remove=bool(settings.get("AutoRemove")),
        executed=len(inspected.get("ExecIDs") or ()),
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


# systemd stops the units of the last four when it stops this one (systemd.unit, "Requires=" and below).
_STOP_WITH_IT = ("RequiredBy", "BoundBy", "ConsistsOf", "PropagatesStopTo")
_UNIT_PROPERTIES = (
    *("Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "ExecStart", "TriggeredBy", "WorkingDirectory"),
    "Job",
    *_STOP_WITH_IT,
)


def _unit(name: str, values: Mapping[str, str]) -> Unit:
    return Unit(
        name,
        values.get("LoadState", ""),
        values.get("ActiveState", ""),
        values.get("SubState", ""),
        values.get("UnitFileState", ""),
        values.get("ExecStart", ""),
        tuple(values.get("TriggeredBy", "").split()),
        tuple(dict.fromkeys(other for key in _STOP_WITH_IT for other in values.get(key, "").split())),
        values.get("WorkingDirectory", "").lstrip("!-"),
        values.get("Job", ""),
    )


def _show(patterns: Sequence[str], run: CommandRunner) -> list[dict[str, str]]:
    text = _checked(
        run,
        ["systemctl", "show", *patterns, f"--property={','.join(_UNIT_PROPERTIES)}"],
        f"look at unit {', '.join(patterns)}",
    )
    # One block per unit, with an empty line between.
    return [_properties(block) for block in text.split("\n\n")]


def _properties(block: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for line in block.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            # A oneshot may have several ExecStart.
            values[name] = f"{values[name]}\n{value}" if name in values else value
    return values


def full_name(unit: str) -> str:
    """A name without a suffix is a service, as for systemctl."""
    return unit if "." in unit else f"{unit}.service"


def units(names: Sequence[str], run: CommandRunner = run_command) -> list[Unit]:
    """The named units, in the order given; one that does not exist has C(exists) False."""
    wanted = [full_name(name) for name in names]
    if not wanted:
        return []
    blocks = _show(wanted, run)
    blocks += [{}] * (len(wanted) - len(blocks))
    return [_unit(name, values) for name, values in zip(wanted, blocks, strict=False)]


def loaded_services(run: CommandRunner = run_command) -> list[Unit]:
    """All services that systemd has in memory: every one that runs, and some that do not."""
    return [_unit(values["Id"], values) for values in _show(["*.service"], run) if values.get("Id")]


def stop_units(names: Sequence[str], run: CommandRunner = run_command) -> None:
    """In one transaction, so that units that start each other do not do it meanwhile.

    One that another starts again in the middle ("canceled") is no error here: whoever stops looks what is back afterwards.
    """
    if names:
        argv = ["systemctl", "stop", *names]
        result = run(argv)
        if result.returncode and "canceled" not in result.stderr:
            _checked(lambda _argv: result, argv, f"stop unit {', '.join(names)}")
        # One whose docker run ended with 143 counts as failed: it was stopped. No error where none had failed.
        run(["systemctl", "reset-failed", *names])


def start_units(names: Sequence[str], run: CommandRunner = run_command, wait: bool = False) -> None:
    """Usually without waiting: a model server may take minutes until systemd calls it active."""
    if names:
        argv = ["systemctl", "start", *([] if wait else ["--no-block"]), *names]
        _checked(run, argv, f"start unit {', '.join(names)}")


def enable_units(names: Sequence[str], enabled: bool, run: CommandRunner = run_command) -> None:
    verb = "enable" if enabled else "disable"
    if names:
        _checked(run, ["systemctl", verb, *names], f"{verb} unit {', '.join(names)}")


def reload_systemd(run: CommandRunner = run_command) -> None:
    _checked(run, ["systemctl", "daemon-reload"], "reload systemd")


def stop_containers(identifiers: Sequence[str], run: CommandRunner = run_command) -> None:
    if identifiers:
        _checked(run, ["docker", "stop", *identifiers], f"stop container {', '.join(identifiers)}")


def start_container(identifier: str, run: CommandRunner = run_command) -> None:
    _checked(run, ["docker", "start", identifier], f"start container {identifier}")


def pause_container(identifier: str, run: CommandRunner = run_command) -> None:
    _checked(run, ["docker", "pause", identifier], f"pause container {identifier}")


def set_restart_policy(identifiers: Sequence[str], policy: str, run: CommandRunner = run_command) -> None:
    if identifiers:
        _checked(
            run,
            ["docker", "update", f"--restart={policy}", *identifiers],
            f"set the restart policy of container {', '.join(identifiers)}",
        )


def remove_containers(identifiers: Sequence[str], run: CommandRunner = run_command) -> None:
    if identifiers:
        _checked(run, ["docker", "rm", "--force", *identifiers], f"remove container {', '.join(identifiers)}")
