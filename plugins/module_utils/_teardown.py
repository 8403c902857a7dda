# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a teardown stops and what it keeps on one host, and how it stops it.

PRIVATE to this collection. Standard library only: also the survey before gate 0 plans a teardown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _workloads as workloads
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_processes import (
    end_processes,
    orphans,
    processes,
    still_alive,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import ProcessOwner
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import (
    KEEP,
    OURS,
    STOP,
    UNLISTED,
    Selection,
    classify,
    process_title,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._unit_owners import (
    mentioned_by,
    runs_itself,
    starts_by_script,
    unit_of_container,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandRunner,
    Container,
    Unit,
    run_command,
)

# A restart policy or a Restart= of another unit has brought a service back within this time; systemd's default RestartSec is 0.1 s.
COMES_BACK_SECONDS = 3
# Of units that start each other a look sees one at a time; each round takes at least one out of the game.
COME_BACK_ROUNDS = 4
# In /etc/systemd/system/UNIT.d: the unit stays enabled or wanted by others, and cannot start while this is there.
SUSPENDED_DROP_IN = "50-dgxspark-suspended.conf"
DROP_IN_FOLDER = "/etc/systemd/system"
_SUSPENDED = """\
# Written by dgxspark.serving: something on this host starts this unit again and again while its memory is needed.
# playbooks/rollback.yml takes it away; by hand: remove this file, then systemctl daemon-reload.
[Unit]
ConditionPathExists=!/
"""


@dataclass(frozen=True)
class Teardown:
    """What a teardown will touch, in the order of stopping, what it keeps although it is alive, and what it has to say.

    triggers: sockets, timers and paths that would start the units. unit_containers: what the units run, and bring back.
    processes: orphans of engines, and what the user named; nobody can bring them back.
    """

    units: tuple[Unit, ...] = ()
    triggers: tuple[Unit, ...] = ()
    containers: tuple[Container, ...] = ()
    unit_containers: tuple[Container, ...] = ()
    processes: tuple[ProcessOwner, ...] = ()
    kept: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def names(self) -> list[str]:
        return (
            [f"unit {unit.name}" for unit in (*self.triggers, *self.units)]
            + [f"container {container.name}" for container in self.containers]
            + [f"process {_title(process)}" for process in self.processes]
        )

    @property
    def lost(self) -> list[str]:
        """What nothing can bring back."""
        removed = [f"container {item.name}" for item in self.containers if item.auto_remove and not item.managed]
        return removed + [name for name in self.names if name.startswith("process ")]

    @property
    def empty(self) -> bool:
        return not self.names

    @property
    def refusals(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == ERROR]


def _title(process: ProcessOwner) -> str:
    return f"{process.pid} ({process_title(process.command)})"


@dataclass
class _Planner:
    """One look at a host, and the lists."""

    stop: Selection
    keep: Selection
    stop_unlisted: Sequence[str]
    end_orphans: bool
    run: CommandRunner
    proc_root: str
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.containers = workloads.containers(self.run)
        self.services = workloads.loaded_services(self.run)
        wanted = [*workloads.MANAGED_UNITS, *self.stop.units, *(name for name in self.stop_unlisted if "." in name)]
        self.named = [unit for unit in workloads.units(list(dict.fromkeys(wanted)), self.run) if unit.exists]
        self.kept_units = [unit for unit in workloads.units(self.keep.units, self.run) if unit.exists and unit.running]
        self.unit_containers = unit_of_container([*self.services, *self.named], self.containers)
        self.processes = processes(self.proc_root)

    def plan(self) -> Teardown:
        self._contradictions()
        wanted = self._wanted_containers()
        units = self._units(wanted)
        wanted |= self._started_by(units)
        # What a running unit runs itself ends with the unit, and comes back with it.
        owned = {item.id for unit in units if unit.running for item in runs_itself(unit, self.containers)}
        stopped = [item for identifier, item in wanted.items() if identifier not in owned]
        triggers = self._triggers(units)
        self._dependents([*triggers, *units])
        ended = self._processes(units, stopped)
        self._warn_about_losses(stopped, ended)
        known = {unit.name for unit in self.named} | {item.name for item in self.containers}
        missing = tuple(name for name in (*self.stop.units, *self.stop.containers) if name not in known)
        kept = [f"container {item.name}" for item in self.containers if item.alive and self._keeps(item)]
        kept += [f"unit {unit.name}" for unit in self.kept_units]
        return Teardown(
            tuple(units),
            tuple(triggers),
            tuple(stopped),
            tuple(item for item in self.containers if item.id in owned),
            tuple(ended),
            tuple(sorted(kept)),
            missing,
            tuple(self.findings),
        )

    def _refuse(self, subject: str, reason: str) -> None:
        self.findings.append(
            Finding(
                "TEARDOWN.CONFLICT",
                ERROR,
                subject,
                f"{subject} {reason}.",
                "Take it off one of the two lists. Nothing is stopped before the lists agree.",
            )
        )

    def _contradictions(self) -> None:
        """Named on both lists. What only an image or a label of spark_stop catches may be kept by name: that is an exception."""
        for kind in ("units", "containers", "images", "labels", "processes"):
            for name in sorted(set(getattr(self.stop, kind)) & set(getattr(self.keep, kind))):
                self._refuse(
                    f"{kind[:-2] if kind == 'processes' else kind[:-1]} {name}", "is on spark_stop and on spark_keep"
                )
        for item in self.containers:
            if (
                item.alive
                and item.name in self.stop.containers
                and item.name not in self.keep.containers
                and self._keeps(item)
            ):
                self._refuse(
                    f"container {item.name}", "is named by spark_stop, and by its image, label or unit on spark_keep"
                )

    def _keeps(self, item: Container) -> bool:
        return self._owner(item) == KEEP

    def _owner(self, item: Container) -> str:
        holder = {"container": item.name, "image": item.image, "labels": item.labels}
        return classify(holder, self.stop, self.keep, self.unit_containers)

    def _wanted_containers(self) -> dict[str, Container]:
        """By id, what the lists name. A stopped one that Docker would start again at the next boot counts, too."""
        wanted = {}
        for item in self.containers:
            owner = self._owner(item)
            named = owner in (STOP, OURS) or (owner == UNLISTED and item.name in self.stop_unlisted)
            if named and (item.alive or item.restart_policy.startswith("always")):
                wanted[item.id] = item
        return wanted

    def _units(self, wanted: dict[str, Container]) -> list[Unit]:
        """The named units, and those that run a named container: they would start it again."""
        units = [unit for unit in self.named if not self.keep.names_unit(unit.name)]
        owners = {self.unit_containers[item.name] for item in wanted.values() if item.name in self.unit_containers}
        units += [unit for unit in self.services if unit.name in owners and unit not in units]
        return [unit for unit in units if unit.running or unit.enabled == "enabled"]

    def _started_by(self, units: Sequence[Unit]) -> dict[str, Container]:
        """By id, the running containers that scripts of the units start, and those that a unit which is down has left behind."""
        found: dict[str, Container] = {}
        left_behind = [unit for unit in self.named if unit.name in self.stop.units and unit not in units]
        for unit in (*units, *left_behind):
            for item in starts_by_script(unit, self.containers):
                if item.alive and self._keeps(item):
                    self._refuse(
                        f"container {item.name}", f"is on spark_keep, and unit {unit.name} of spark_stop starts it"
                    )
                elif item.alive:
                    found[item.id] = item
        return found

    def _triggers(self, units: Sequence[Unit]) -> list[Unit]:
        names = list(dict.fromkeys(name for unit in units for name in unit.triggered_by))
        stopped = {unit.name for unit in units}
        triggers = [unit for unit in workloads.units(names, self.run) if unit.name not in stopped]
        for unit in triggers:
            if self.keep.names_unit(unit.name):
                self._refuse(f"unit {unit.name}", "is on spark_keep, and starts a unit of spark_stop")
        return [unit for unit in triggers if unit.running or unit.enabled == "enabled"]

    def _dependents(self, units: Sequence[Unit]) -> None:
        """A kept unit that systemd would stop with one of ours."""
        for unit in units:
            for other in unit.stops_with_it:
                if self.keep.names_unit(other) and any(kept.name == other for kept in self.kept_units):
                    self._refuse(
                        f"unit {other}",
                        f"is on spark_keep, and systemd stops it together with {unit.name} of spark_stop",
                    )

    def _processes(self, units: Sequence[Unit], stopped: Sequence[Container]) -> list[ProcessOwner]:
        """Orphans of what is stopped (of all engines, if allowed), and what the user named."""
        alive = {item.id for item in self.containers if item.alive}
        running = {unit.name for unit in self.services if unit.running}
        stopped_ids = {item.id for item in stopped}
        ended = {}
        for process in orphans(self.processes, alive, running):
            belongs = process.systemd_unit in {unit.name for unit in units} or process.container_id in stopped_ids
            if (self.end_orphans or belongs) and not self.keep.names_process(process.command, process.name):
                ended[process.pid] = process
        for process in self.processes.values():
            named = self.stop.names_process(process.command, process.name)
            if named and self.keep.names_process(process.command, process.name):
                self._refuse(f"process {_title(process)}", "is named by spark_stop and by spark_keep")
            # In a container or a unit that goes on it is that one's business.
            elif named and process.container_id not in alive and process.systemd_unit not in running:
                ended[process.pid] = process
        return sorted(ended.values(), key=lambda process: process.pid)

    def _warn_about_losses(self, stopped: Sequence[Container], ended: Sequence[ProcessOwner]) -> None:
        for item in stopped:
            if item.managed or not item.alive:
                continue
            if item.auto_remove and item.name not in self.unit_containers:
                self._warn(f"container {item.name}", "was started with --rm: stopping it removes it")
            elif item.executed:
                self._warn(
                    f"container {item.name}",
                    f"runs {item.executed} process(es) that docker exec started; a start of the container does not",
                )
        for process in ended:
            self._warn(f"process {_title(process)}", "is no service: nothing can start it again")

    def _warn(self, subject: str, reason: str) -> None:
        self.findings.append(
            Finding(
                "TEARDOWN.NOT_RESTORABLE",
                WARNING,
                subject,
                f"{subject} {reason}. A failed deployment cannot bring it back.",
                "Run it as a systemd unit, or as a container without --rm and with the server as its main process, if it must come back.",
            )
        )


def plan_teardown(
    stop: Selection,
    keep: Selection,
    stop_unlisted: Sequence[str] = (),
    end_orphans: bool = False,
    run: CommandRunner = run_command,
    proc_root: str = "/proc",
) -> Teardown:
    """What is to be stopped on this host: what the user named, what an earlier deployment of ours runs, and C(stop_unlisted)
    (names of containers and units that hold memory and that the user allowed to stop).

    end_orphans: end every engine process whose server is gone, and not only those of what is stopped.
    A teardown with C(refusals) must not be carried out. Raises WorkloadError when the host cannot be looked at.
    """
    return _Planner(stop, keep, stop_unlisted, end_orphans, run, proc_root).plan()


def missing_findings(teardown: Teardown) -> list[Finding]:
    return [
        Finding(
            "TEARDOWN.NAMED_MISSING",
            INFO,
            name,
            f"{name} is on spark_stop and does not exist here.",
            "",
        )
        for name in teardown.missing
    ]


def suspend(names: Sequence[str], run: CommandRunner, folder: str = DROP_IN_FOLDER) -> None:
    """Make the units unable to start, whoever asks for it."""
    for name in names:
        os.makedirs(f"{folder}/{name}.d", mode=0o755, exist_ok=True)
        with open(f"{folder}/{name}.d/{SUSPENDED_DROP_IN}", "w", encoding="utf-8") as handle:
            handle.write(_SUSPENDED)
    if names:
        workloads.reload_systemd(run)


def _members(teardown: Teardown, proc_root: str) -> list[ProcessOwner]:
    """The processes that should end with what is stopped."""
    containers = {item.id for item in teardown.containers}
    units = {unit.name for unit in teardown.units}
    return [
        process
        for process in processes(proc_root).values()
        if process.container_id in containers or (process.systemd_unit in units and not process.container_id)
    ]


def _stop_services(teardown: Teardown, run: CommandRunner) -> None:
    everything = [*teardown.triggers, *teardown.units]
    workloads.enable_units([unit.name for unit in everything if unit.enabled == "enabled"], False, run)
    # In one transaction, what starts others before what it starts.
    workloads.stop_units([unit.name for unit in everything], run)
    present = workloads.containers(run)
    wanted = {item.id for item in teardown.containers}
    wanted |= {item.id for unit in teardown.units for item in runs_itself(unit, present)}
    present = [item for item in present if item.id in wanted]
    # Suspended, so that a restart of the engine or of the host does not bring it back into the new deployment's memory.
    workloads.set_restart_policy([item.id for item in present if item.restart_policy != "no"], "no", run)
    workloads.stop_containers([item.id for item in present if item.alive], run)


def _back(teardown: Teardown, run: CommandRunner) -> tuple[list[str], list[Container]]:
    """(units, containers) of the teardown that run."""
    names = [unit.name for unit in (*teardown.triggers, *teardown.units)]
    units = [unit.name for unit in workloads.units(names, run) if unit.running]
    present = workloads.containers(run)
    stopped = {item.name for item in teardown.containers}
    stopped |= {item.name for unit in teardown.units for item in runs_itself(unit, present)}
    return units, [item for item in present if item.alive and item.name in stopped]


def stop_all(
    teardown: Teardown,
    run: CommandRunner = run_command,
    sleep: Callable[[float], Any] = time.sleep,
    proc_root: str = "/proc",
) -> list[str]:
    """Stop what the plan says; units first, because a unit may start its container again.

    What comes back is suspended and stopped once more. Returns what runs even so, with who may be starting it.
    Raises WorkloadError when something cannot be stopped.
    """
    if teardown.empty:
        return []
    members = _members(teardown, proc_root)
    _stop_services(teardown, run)
    sleep(COMES_BACK_SECONDS)
    units, containers = _back(teardown, run)
    for _round in range(COME_BACK_ROUNDS):
        if not units and not containers:
            break
        # Our own come back by our own restart rule, which goes with the teardown; the next deployment must be able to start them.
        suspend([name for name in units if name not in workloads.MANAGED_UNITS], run)
        workloads.stop_units(units, run)
        workloads.stop_containers([item.id for item in containers], run)
        sleep(COMES_BACK_SECONDS)
        units, containers = _back(teardown, run)
    alive = {item.id for item in workloads.containers(run) if item.alive}
    survivors = [process for process in still_alive(members, proc_root) if process.container_id not in alive]
    left = end_processes([*teardown.processes, *survivors], proc_root, sleep=sleep)
    services = workloads.loaded_services(run) if units or containers else []
    names = [*(("unit", name) for name in units), *(("container", item.name) for item in containers)]
    explained = []
    for kind, name in names:
        suspects = mentioned_by(name, [unit for unit in services if unit.running])
        explained.append(f"{kind} {name}" + (f" (unit {', '.join(suspects)} mentions it)" if suspects else ""))
    return explained + [f"process {_title(process)}" for process in left]
