# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A host whose services a run has stopped restores itself when the run gives no more sign of life.

The run holds a lease: a file with a deadline that the run moves on. A timer of the host looks at it; what it does then is in
_restore_program. A lease is also the lock of the host: while one is held, another run is refused.

PRIVATE to this collection. Standard library only, it is part of a host program.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._files import write_file
from ansible_collections.dgxspark.serving.plugins.module_utils._host_program import program_command
from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import start_ticks
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import RESTORE_FOLDER
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandRunner,
    WorkloadError,
    run_command,
)

PROGRAM = "dgxspark-restore"
SERVICE, TIMER = f"{PROGRAM}.service", f"{PROGRAM}.timer"
UNIT_FOLDER = "/etc/systemd/system"
# A run says that it lives every few seconds while it waits, and at each gate; the longest silence of a healthy one is gate 6,
# which waits twice 90 s for memory. Five minutes leave room for a slow SSH connection.
LEASE_SECONDS = 300
# A look at all ranks every 3 s and a few tasks between two waits: less than this would end healthy runs.
SHORTEST_LEASE_SECONDS = 30
# How often the host looks, and how long after a boot; a start of Python costs it a tenth of a second.
LOOK_EVERY_SECONDS = 10

_SERVICE_TEXT = """\
# Written by dgxspark.serving while a deployment is at work; its timer is disabled once the deployment is accepted.
[Unit]
Description=Bring back what ran before an unfinished deployment
After=docker.service network-online.target
Wants=docker.service

[Service]
Type=oneshot
ExecStart={command} watch
# What is brought back may be a large model that takes minutes to answer.
TimeoutStartSec=infinity
"""
_TIMER_TEXT = """\
# Written by dgxspark.serving while a deployment is at work; disabled once the deployment is accepted.
[Unit]
Description=Does the deployment that stopped this host's services still live?

[Timer]
OnActiveSec={seconds}
OnBootSec={seconds}
OnUnitInactiveSec={seconds}
AccuracySec=1

[Install]
WantedBy=timers.target
"""


class LeaseError(WorkloadError):
    """Another run holds the host, or this run has lost it; the message says which and what to do."""


@dataclass(frozen=True)
class Lease:
    """deadline: seconds of the boot clock; boot: which boot that was. since: seconds since 1970."""

    run: str
    boot: str
    deadline: float
    since: float
    seconds: float

    @property
    def left(self) -> float:
        """Seconds until the host restores itself; 0 or less means that it is due."""
        return self.deadline - _boot_clock() if self.boot == boot_identity() else 0.0

    @property
    def rebooted(self) -> bool:
        return self.boot != boot_identity()

    def as_dict(self) -> dict[str, Any]:
        return {"run": self.run, "since": self.since, "seconds_left": round(self.left), "rebooted": self.rebooted}


def lease_file(folder: str) -> str:
    return f"{folder}/.lease"


def _outcome_file(folder: str) -> str:
    return f"{folder}/.outcome"


def _boot_clock() -> float:
    """Goes on while the host sleeps and is not set by anybody."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_identity() -> str:
    """Differs after each boot; with the start of pid 1 also in a container, whose kernel goes on."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
        return f"{handle.read().strip()}/{start_ticks(1)}"


def read_lease(folder: str = RESTORE_FOLDER) -> Lease | None:
    """The lease of the run that has stopped services here and has not ended."""
    try:
        with open(lease_file(folder), encoding="utf-8") as handle:
            return Lease(**json.load(handle))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise LeaseError(f"Cannot read {lease_file(folder)}: {error}") from error


def _write_lease(run: str, seconds: float, since: float, folder: str) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    lease = Lease(run, boot_identity(), _boot_clock() + seconds, since, seconds)
    write_file(lease_file(folder), json.dumps(lease.__dict__).encode(), 0o600)


def refuse_others(run: str, folder: str = RESTORE_FOLDER) -> None:
    """Raises LeaseError when another run is at work on this host or has left it to be restored."""
    lease = read_lease(folder)
    if lease is None or lease.run == run:
        return
    since = time.strftime("%H:%M:%S", time.localtime(lease.since))
    if lease.left > 0:
        raise LeaseError(
            f"Run {lease.run} has been at work on this host since {since}. Wait until it ends; if it was broken off, the host "
            f"restores itself in {lease.left:.0f} s, or at once with playbooks/rollback.yml."
        )
    raise LeaseError(
        f"Run {lease.run} of {since} was broken off, and this host is bringing back what ran before. Wait until it is done "
        f"(journalctl -u {SERVICE}), or call playbooks/rollback.yml."
    )


def arm(run: str, seconds: float, folder: str = RESTORE_FOLDER, runner: CommandRunner = run_command) -> None:
    """Take the lease and start the timer, which survives a reboot. seconds: without a sign of life, until the host restores itself."""
    refuse_others(run, folder)
    lease = read_lease(folder)
    _write_lease(run, seconds, lease.since if lease else time.time(), folder)
    texts = {
        SERVICE: _SERVICE_TEXT.format(command=" ".join(program_command(PROGRAM))),
        TIMER: _TIMER_TEXT.format(seconds=LOOK_EVERY_SECONDS),
    }
    for name, text in texts.items():
        write_file(f"{UNIT_FOLDER}/{name}", text.encode(), 0o644)
    # Reads the units anew, too (systemctl(1), "enable").
    _timer("enable", runner)


def _timer(verb: str, runner: CommandRunner) -> None:
    result = runner(["systemctl", verb, "--now", TIMER])
    if result.returncode:
        raise LeaseError(f"Cannot {verb} {TIMER}: {result.stderr.strip()}")


def renew(run: str, seconds: float, folder: str = RESTORE_FOLDER) -> None:
    """A sign of life. Raises LeaseError when the host has restored itself meanwhile: the run must not go on."""
    lease = read_lease(folder)
    if lease is None or lease.run != run or lease.left <= 0:
        outcome = read_outcome(folder)
        if outcome and outcome["run"] == run:
            reason = str(outcome["reason"])
        elif lease and lease.run == run:
            reason = "the host was rebooted" if lease.rebooted else f"there was no sign of it for {lease.seconds:.0f} s"
        else:
            reason = "somebody has ended it"
        raise LeaseError(f"This host brings back, or has brought back, what ran before run {run}: {reason}.")
    _write_lease(run, seconds, lease.since, folder)


def disarm(folder: str = RESTORE_FOLDER, runner: CommandRunner = run_command) -> None:
    """Give the lease back and stop the timer. Harmless where none is held."""
    if os.path.exists(f"{UNIT_FOLDER}/{TIMER}"):
        _timer("disable", runner)
        for name in (SERVICE, TIMER):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{UNIT_FOLDER}/{name}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(lease_file(folder))


def read_outcome(folder: str = RESTORE_FOLDER) -> dict[str, Any] | None:
    """What the last restore of this host did: run, reason, at (seconds since 1970), removed, restored, problems."""
    try:
        with open(_outcome_file(folder), encoding="utf-8") as handle:
            outcome: dict[str, Any] = json.load(handle)
            return outcome
    except (FileNotFoundError, ValueError):
        return None


def write_outcome(outcome: dict[str, Any], folder: str = RESTORE_FOLDER) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_file(_outcome_file(folder), json.dumps(outcome, indent=1).encode(), 0o600)


def forget_outcome(folder: str = RESTORE_FOLDER) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_outcome_file(folder))


@contextlib.contextmanager
def at_work(folder: str = RESTORE_FOLDER, wait: bool = False) -> Iterator[None]:
    """Only one teardown or restore at a time on a host. wait: until the other is done; else LeaseError."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(f"{folder}/.lock", "w", encoding="ascii") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise LeaseError("Another teardown or restore is at work on this host. Wait until it has ended.") from error
        yield
