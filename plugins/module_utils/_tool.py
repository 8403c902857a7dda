# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs a tool of the host that may hang.

PRIVATE to this collection.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered. timed_out: it did not end in time and was killed; missing: there is no such program."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False
    missing: bool = False

    @property
    def ok(self) -> bool:
        return self.returncode == 0 and not self.timed_out and not self.missing

    @property
    def complaint(self) -> str:
        """The line that tells most about a failure."""
        for text in (self.stderr, self.stdout):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1]
        return f"exit status {self.returncode}"


def run_tool(command: list[str], timeout: float) -> ToolResult:
    """Run C(command) for at most C(timeout) seconds.

    Unlike subprocess.run it does not wait for the killed process: a tool that hangs in a driver call cannot be killed
    (state D), and waiting for it would hang this module as well.
    """
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}
    try:
        # A tool that hangs in the driver cannot be waited for: not for run_command.
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return ToolResult(127, "", f"{command[0]}: {error.strerror}", missing=True)
    try:
        output, complaints = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
        return ToolResult(-signal.SIGKILL, "", f"{command[0]} did not answer within {timeout:g} s", timed_out=True)
    return ToolResult(process.returncode, output.decode(errors="replace"), complaints.decode(errors="replace"))
