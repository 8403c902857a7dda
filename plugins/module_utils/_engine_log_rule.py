# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The form of what is known about lines of logs: a rule. The tables are in _engine_log_rules and _engine_log_memory_rules.

PRIVATE to this collection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Which of two events is the cause: the smaller weight; of equal ones the earlier.
# KILLER: something outside ended the process, whatever it says itself. ROOT: the line names what is wrong. GENERIC: the line
# says what failed, and something else may say why. FALLBACK: a sign of what is wrong that works now and then. WAITING: not
# a failure as long as the start goes on. LOST, DEATH, DEAD: that something died, not why. TIMEOUT: some rank did not answer.
KILLER, ROOT, GENERIC, FALLBACK, LOST, TIMEOUT, UNKNOWN_TRACEBACK, WAITING, DEATH, DEAD = (
    10,
    20,
    30,
    40,
    42,
    44,
    46,
    50,
    60,
    70,
)
DEATHS = (LOST, DEATH, DEAD)
# Passing signs: they are no cause when the start went on after them.
PASSING = (GENERIC, FALLBACK, TIMEOUT, UNKNOWN_TRACEBACK, WAITING)

# The pattern of rules that no line makes.
NO_LINE = re.compile(r"$^")
_QUIET_LEVELS = ("DEBUG", "INFO", "WARNING")


@dataclass(frozen=True)
class Rule:
    """One kind of line.

    pattern: named groups become numbers; more: searched in the lines that follow in the same stream; frame: must stand in the
    traceback above; unless: the line is no such case; phase: empty means as far as the start had come; any_level: also in lines
    that are logged as information or warning, which otherwise are never a cause; survived: a later line that takes it back.
    """

    id: str
    weight: int
    pattern: re.Pattern[str]
    message: str
    remedy: str
    phase: str = ""
    more: tuple[re.Pattern[str], ...] = ()
    frame: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None
    any_level: bool = False
    survived: re.Pattern[str] | None = None
    certain: bool = True
    next_candidate: bool = False

    @property
    def silent(self) -> bool:
        """Made of what the log does not say, by no line."""
        return self.pattern.pattern == NO_LINE.pattern

    def matches(self, text: str, level: str) -> re.Match[str] | None:
        if level in _QUIET_LEVELS and not self.any_level:
            return None
        found = self.pattern.search(text)
        return None if found and self.unless and self.unless.search(text) else found


class _Missing(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "an unknown number of" if key.endswith(("_gib", "_mib", "_tokens")) else "unknown"


def filled(template: str, values: Mapping[str, Any]) -> str:
    """The text with its numbers; what no line told is said to be unknown."""
    return template.format_map(_Missing(values))


def numbers_of(match: re.Match[str]) -> dict[str, Any]:
    """Named groups, numbers as numbers. A name that ends in C(_text) stays a text."""
    return {name: _number(name, value) for name, value in match.groupdict().items() if value is not None}


def _number(name: str, value: str) -> Any:
    plain = value.replace(",", "")
    if name.endswith("_text"):
        return value
    if re.fullmatch(r"-?\d+", plain):
        return float(plain) if name.endswith(("_gib", "_gb", "utilization")) else int(plain)
    if re.fullmatch(r"-?\d+\.\d+", plain):
        return float(plain)
    return value
