# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How far a long task of a host is, for whoever asks: a small file that the task writes and the control node reads.

PRIVATE to this collection. The reader's visits are also the task's sign of life of the run: one that nobody asks about any
more ends itself, so that nothing of a run outlives it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FOLDER = "/run/dgxspark/staging"
# The control node asks every few seconds. One whose link is down for longer has most likely given up the run.
ABANDONED_SECONDS = 300
_WRITE_EVERY_SECONDS = 1
# The last words, on stderr, of a task that was told to end: it has no result.
ENDED = "The run has ended."
# For a task of an earlier run to tidy up.
_END_SECONDS = 10


def _end_with_an_exception(_number: int, _frame: Any) -> None:
    # Once: a second one would break into what tidies up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(ENDED)


@dataclass
class Progress:
    """path: of the file, empty for a task that nobody watches. done, total: bytes; total 0 while it is not known."""

    path: str = ""
    phase: str = ""
    done: int = 0
    total: int = 0
    watch: Callable[[], int] | None = None

    def enter(self, phase: str, total: int = 0, watch: Callable[[], int] | None = None) -> None:
        """Begin a phase. watch: says how many bytes are done, when somebody wants to know."""
        self.phase, self.total, self.done, self.watch = phase, total, 0, watch
        self.write()

    def write(self) -> None:
        if not self.path:
            return
        if self.watch:
            self.done = self.watch()
        content = {"phase": self.phase, "done": self.done, "total": self.total, "pid": os.getpid(), "time": time.time()}
        unfinished = f"{self.path}.new"
        with open(unfinished, "w", encoding="utf-8") as handle:
            handle.write(json.dumps(content))
        os.replace(unfinished, self.path)

    def begin(self) -> Callable[[], None]:
        """Write every second, and end this process when nobody has asked for too long. Returns the function that ends it."""
        if not self.path:
            return lambda: None
        # As an exception, so that everything that was started is ended on the way out.
        signal.signal(signal.SIGTERM, _end_with_an_exception)
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        _end_predecessors(self.path)
        mark_visit(self.path)
        ended = threading.Event()

        def repeat() -> None:
            while not ended.wait(_WRITE_EVERY_SECONDS):
                self.write()
                if last_visit(self.path) < time.time() - ABANDONED_SECONDS:
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()

        def end() -> None:
            ended.set()
            # It must neither write the file again nor take the missing visit for a run that has gone.
            thread.join()
            for path in (self.path, f"{self.path}.visit"):
                if os.path.exists(path):
                    os.unlink(path)

        return end


def _end_predecessors(path: str) -> None:
    """End the same task of an earlier run, which was broken off: it would still hold its ports."""
    kind = path.rpartition("-")[2]
    for other in glob.glob(f"{os.path.dirname(path)}/*-{kind}"):
        if other == path:
            continue
        process = read(other).get("pid")
        deadline = time.monotonic() + _END_SECONDS
        with contextlib.suppress(OSError):
            if process and _is_ours(process):
                os.kill(process, signal.SIGTERM)
            while process and _is_ours(process) and time.monotonic() < deadline:
                time.sleep(0.2)
        for left in (other, f"{other}.visit"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(left)


def _is_ours(process: int) -> bool:
    """A process id may have been given to another program since, or after a boot."""
    with open(f"/proc/{process}/cmdline", "rb") as handle:
        return b"python" in handle.read() and process != os.getpid()


def read(path: str) -> dict[str, Any]:
    """What the task says; empty before it has begun and after it has ended."""
    try:
        with open(path, encoding="utf-8") as handle:
            content: dict[str, Any] = json.load(handle)
    except (OSError, ValueError):
        return {}
    mark_visit(path)
    return content


def mark_visit(path: str) -> None:
    with open(f"{path}.visit", "a", encoding="ascii"):
        os.utime(f"{path}.visit")


def last_visit(path: str) -> float:
    try:
        return os.stat(f"{path}.visit").st_mtime
    except FileNotFoundError:
        return 0.0
