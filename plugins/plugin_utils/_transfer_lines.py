# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a terminal shows of copies: bytes, rate and time left.

PRIVATE to this collection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MB, GB = 1000**2, 1000**3
# A line at least so often, so that nobody thinks the run hangs.
SAY_EVERY_SECONDS = 15


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / GB:.2f} GB" if count >= GB else f"{count / MB:.1f} MB"


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


class Transfers:
    """The copies of one host over time."""

    def __init__(self, host: str, started: float) -> None:
        self.host, self.started = host, started
        # Of each copy: its phase, when a line was printed last, and what was done when its phase was first seen.
        self._phases: dict[str, str] = {}
        self._said: dict[str, float] = {}
        self._before: dict[str, tuple[float, int]] = {}

    def lines(self, progress: Mapping[str, Mapping[str, Any]], now: float) -> list[str]:
        """What is worth printing now. progress: what each copy says of itself; empty before it has begun."""
        found = []
        for name, state in progress.items():
            phase = str(state.get("phase") or "")
            if not phase:
                continue
            is_new = phase != self._phases.get(name)
            if is_new:
                self._phases[name] = phase
                self._before[name] = (float(state["time"]), int(state["done"]))
            if is_new or now - self._said.get(name, 0) >= SAY_EVERY_SECONDS:
                self._said[name] = now
                found.append(f"[{self.host} +{now - self.started:.0f} s] {self._line(name, phase, state)}")
        return found

    def _line(self, name: str, phase: str, state: Mapping[str, Any]) -> str:
        done, total = int(state["done"]), int(state["total"])
        words = phase if name in phase else f"{name}: {phase}"
        if not total:
            return words
        if done >= total:
            return f"{words}: all of {size(done)} has arrived and is being worked into the host"
        words += f" {size(done)} of {size(total)}"
        since, before = self._before[name]
        seconds = float(state["time"]) - since
        if seconds < 1 or done <= before:
            return words
        rate = (done - before) / seconds
        return f"{words}, {size(rate)}/s, {duration((total - done) / rate)} left"


def would_be_moved(host: str, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """For check mode: what each copy would move."""
    lines = []
    for name, result in results.items():
        if result.get("failed"):
            continue
        amount = int(result.get("bytes_received" if name == "image" else "bytes_to_copy") or 0)
        if amount:
            lines.append(f"{host}: {name}: {size(amount)} would be moved")
        elif result.get("changed"):
            lines.append(f"{host}: {name}: would be made ready, nothing would be moved")
        else:
            lines.append(f"{host}: {name}: is there already")
    return lines
