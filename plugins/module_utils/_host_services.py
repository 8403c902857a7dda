# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Folders, files and units of a deployment on its host, all in one go: a round trip to a host costs more than the work.

PRIVATE to this collection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.dgxspark.serving.plugins.module_utils._files import content_and_mode, write_file
from ansible_collections.dgxspark.serving.plugins.module_utils._host_secrets import SECRET_MODE
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandRunner,
    WorkloadError,
    enable_units,
    reload_systemd,
    run_command,
    start_units,
    units,
)

FILE_MODE = 0o644
# Files that are written where they are missing only: the environment of a run, which holds its id.
INITIAL_FILE_MODE = 0o640
# Lines of the journal of a unit that does not start, for the message.
_JOURNAL_LINES = 8


@dataclass(frozen=True)
class Change:
    """One file that differs from what it must be. before: None where there is none; shown only where it is no secret."""

    path: str
    content: bytes
    mode: int
    before: bytes | None
    secret: bool = False

    def diff(self) -> dict[str, str]:
        """As Ansible shows it with --diff."""
        return {
            "before_header": self.path,
            "after_header": self.path,
            "before": (self.before or b"").decode("utf-8", "replace"),
            "after": self.content.decode("utf-8", "replace"),
        }


def file_changes(
    files: Mapping[str, str], initial_files: Mapping[str, str], secret_files: Mapping[str, str]
) -> list[Change]:
    """The files that are not what they must be. Raises OSError for one that cannot be read."""
    wanted = [(path, text, FILE_MODE, False) for path, text in files.items()]
    wanted += [
        (path, text, INITIAL_FILE_MODE, False) for path, text in initial_files.items() if not os.path.exists(path)
    ]
    wanted += [(path, text, SECRET_MODE, True) for path, text in secret_files.items()]
    changes = []
    for path, text, mode, secret in wanted:
        content, present = text.encode(), content_and_mode(path)
        if present != (content, mode):
            changes.append(Change(path, content, mode, present[0] if present else None, secret))
    return changes


def folder_changes(folders: Mapping[str, int]) -> list[str]:
    """Folders that are missing or have another mode."""
    return [path for path, mode in folders.items() if not os.path.isdir(path) or os.stat(path).st_mode & 0o7777 != mode]


def make_folders(folders: Mapping[str, int]) -> None:
    for path, mode in folders.items():
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)


def write_changes(changes: Sequence[Change]) -> None:
    for change in changes:
        write_file(change.path, change.content, change.mode)


def units_to_start(names: Sequence[str], run: CommandRunner = run_command) -> list[str]:
    """Those that are not active or do not start with the host."""
    return [unit.name for unit in units(names, run) if unit.active != "active" or unit.enabled != "enabled"]


def bring_up(names: Sequence[str], run: CommandRunner = run_command) -> None:
    """Read the units anew, enable and start them in one transaction, whose order is that of their files.

    Raises WorkloadError with the journal of each that does not start.
    """
    if not names:
        reload_systemd(run)
        return
    # Reads the units anew, too (systemctl(1), "enable"), also where they are enabled already.
    enable_units(names, True, run)
    try:
        start_units(names, run, wait=True)
    except WorkloadError as error:
        down = [unit for unit in units(names, run) if unit.active != "active"]
        if not down:
            raise
        told = [
            f"{unit.name} is {unit.active}; its journal ends with:\n{_journal_end(unit.name, run)}" for unit in down
        ]
        raise WorkloadError("Started, but not running: " + "\n".join(told)) from error


def _journal_end(unit: str, run: CommandRunner) -> str:
    result = run(["journalctl", "--no-pager", "--output=cat", f"--lines={_JOURNAL_LINES}", f"--unit={unit}"])
    return "\n".join(f"    {line}" for line in (result.stdout or result.stderr).splitlines())
