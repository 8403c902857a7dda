# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The host's own program that brings back what ran before a deployment. It needs no control node and no network.

The timer calls C(watch), a failing run and playbooks/rollback.yml call C(restore).

PRIVATE to this collection. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._restore_lease import (
    LeaseError,
    at_work,
    disarm,
    read_lease,
    write_outcome,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import (
    ORIGINAL,
    RESTORE_FOLDER,
    RestorePoint,
    deployed_run,
    record_names,
    record_path,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._rollback import (
    ANSWERS_AGAIN_SECONDS,
    Restored,
    bring_back,
    is_in_force,
    remove_deployment,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import WorkloadError

NEWEST = "newest"


def _say(line: str) -> None:
    """Into the journal, or to whoever called; the answer goes to standard output."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def point_named(name: str, folder: str) -> RestorePoint | None:
    """The record of that name, V(newest) or V(original). None where a run that holds this host, or was accepted on it, has
    recorded nothing: it has found nothing to stop.

    Raises WorkloadError when there is no such record.
    """
    if name == NEWEST:
        names = [entry for entry in record_names(folder) if entry != ORIGINAL]
        if not names:
            raise WorkloadError(
                f"There is no restore point on this host ({folder}): no deployment has stopped anything here."
            )
        name = names[0]
    if not os.path.exists(record_path(name, folder)):
        lease = read_lease(folder)
        if (lease and lease.run == name) or deployed_run() == name:
            return None
    return RestorePoint.load(name, folder)


def restore(
    name: str, reason: str, folder: str = RESTORE_FOLDER, wait_seconds: float = ANSWERS_AGAIN_SECONDS
) -> dict[str, Any]:
    """Remove what our deployment runs and bring back a restore point. Returns the outcome, which the host also keeps.

    Raises WorkloadError when the engine or systemd does not answer: then nothing is given up, and the timer tries again.
    """
    point = point_named(name, folder)
    if point and is_in_force(point):
        result = Restored(restored=point.names)
    else:
        removed = remove_deployment()
        if point:
            _say(f"bringing back {', '.join(point.names) or 'nothing'}")
            result = bring_back(point, wait_seconds=wait_seconds, say=_say)
        else:
            result = Restored()
        result.removed = removed
    outcome = {
        "run": point.run if point else name,
        "reason": reason,
        "at": time.time(),
        "ended": point.ended if point else [],
        **result.as_dict(),
    }
    if result.removed or result.changed:
        write_outcome(outcome, folder)
    disarm(folder)
    return outcome


def watch(folder: str = RESTORE_FOLDER) -> int:
    """One look of the timer: restore if the run that holds this host gives no sign of life, or the host was rebooted."""
    lease = read_lease(folder)
    if lease is None:
        disarm(folder)
        return 0
    if lease.left > 0:
        return 0
    reason = "the host was rebooted" if lease.rebooted else f"no sign of the run for {lease.seconds:.0f} s"
    try:
        with at_work(folder):
            _say(f"run {lease.run}: {reason}")
            outcome = restore(lease.run, f"{reason}, so the host restored itself", folder)
    except LeaseError as error:
        _say(str(error))
        return 0
    for line in (*outcome["restored"], *outcome["problems"]):
        _say(line)
    return 1 if outcome["problems"] else 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dgxspark-restore", description="Bring back what ran before a deployment.")
    parser.add_argument("--folder", default=RESTORE_FOLDER, help="where restore points are kept")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("watch", help="restore if the run at work on this host gives no more sign of life")
    restoring = commands.add_parser("restore", help="remove the deployment and bring back a restore point")
    restoring.add_argument("name", nargs="?", default=NEWEST, help="id of a run, 'newest' or 'original'")
    restoring.add_argument("--reason", default="asked for on the host")
    restoring.add_argument("--wait-seconds", type=float, default=ANSWERS_AGAIN_SECONDS)
    commands.add_parser("list", help="names of the restore points, the newest first")
    options = parser.parse_args(argv)
    try:
        if options.command == "watch":
            return watch(options.folder)
        if options.command == "list":
            sys.stdout.write("".join(f"{name}\n" for name in record_names(options.folder)))
            return 0
        with at_work(options.folder, wait=True):
            outcome = restore(options.name, options.reason, options.folder, options.wait_seconds)
        sys.stdout.write(json.dumps(outcome) + "\n")
        return 1 if outcome["problems"] else 0
    except WorkloadError as error:
        _say(str(error))
        return 2
