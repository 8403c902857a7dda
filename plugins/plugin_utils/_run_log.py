# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The record of one run on the control node: which gate began when, and what the hosts say to each other while they wait.

PRIVATE to this collection.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUNS_FOLDER = Path("~/.cache/dgxspark/runs").expanduser()
# Records of older runs are removed when a new one begins.
KEPT_RUNS = 20


@dataclass(frozen=True)
class Gate:
    number: str
    title: str
    started: float


class RunLog:
    """The folder of one run; made by new(), found again by its id. File C(token) is the secret that its hosts show each other."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.folder = RUNS_FOLDER / run

    @classmethod
    def new(cls) -> RunLog:
        """A run whose id sorts by time, from whatever time zone it is started, and does not repeat."""
        log = cls(time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2))
        log.folder.mkdir(mode=0o700, parents=True)
        with os.fdopen(os.open(log.folder / "token", os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as handle:
            handle.write(secrets.token_hex(32))
        # Not by name: a clock that was put back would make this run the oldest.
        folders = [path for path in RUNS_FOLDER.iterdir() if path.is_dir()]
        for old in sorted(folders, key=lambda path: path.stat().st_mtime_ns)[:-KEPT_RUNS]:
            for entry in old.iterdir():
                entry.unlink()
            old.rmdir()
        return log

    def enter_gate(self, number: str, title: str) -> None:
        with open(self.folder / "gates.jsonl", "a", encoding="utf-8") as handle:
            handle.write(json.dumps({"number": number, "title": title, "started": time.time()}) + "\n")

    def gates(self) -> list[Gate]:
        try:
            text = (self.folder / "gates.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [Gate(**json.loads(line)) for line in text.splitlines()]

    def seconds_per_gate(self, now: float) -> list[tuple[Gate, float]]:
        """Each gate with the seconds until the next one began; the last one until C(now)."""
        gates = self.gates()
        ends = [gate.started for gate in gates[1:]] + [now]
        return [(gate, round(end - gate.started, 1)) for gate, end in zip(gates, ends, strict=True)]

    def finish(self, values: dict[str, Any]) -> None:
        """Keep the figures of a run that has come to its end."""
        (self.folder / "summary.json").write_text(json.dumps(values), encoding="utf-8")

    def say(self, topic: str, host: str, message: dict[str, Any]) -> None:
        """Leave a message for the other hosts' tasks; it replaces the host's earlier one on this topic."""
        path = self.folder / f"{topic}.{host}.json"
        partial = path.with_suffix(".new")
        partial.write_text(json.dumps(message), encoding="utf-8")
        os.replace(partial, path)

    def heard(self, topic: str, host: str) -> dict[str, Any] | None:
        try:
            loaded: dict[str, Any] = json.loads((self.folder / f"{topic}.{host}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return loaded
