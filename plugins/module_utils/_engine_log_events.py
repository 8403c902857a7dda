# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From lines to events: which rules apply where, and which of them still stand at the end of the logs.

PRIVATE to this collection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _engine_log_memory_rules as memory_rules
from ansible_collections.dgxspark.serving.plugins.module_utils import _engine_log_rank_rules as rank_rules
from ansible_collections.dgxspark.serving.plugins.module_utils import _engine_log_rules as other_rules
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log import (
    CONFIG,
    GRAPH_CAPTURE,
    JOIN,
    KV_CACHE,
    LOAD,
    PHASE_MARKS,
    PROFILE,
    READY,
    SERVE,
    STOPPED,
    LogLine,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_rule import (
    DEATHS,
    KILLER,
    NO_LINE,
    PASSING,
    ROOT,
    UNKNOWN_TRACEBACK,
    WAITING,
    Rule,
    numbers_of,
)

RULES: tuple[Rule, ...] = (*memory_rules.RULES, *other_rules.RULES, *rank_rules.RULES)
# One search that tells most lines from those that some rule may know; the rules decide.
_SOME_RULE = re.compile(
    "|".join(f"(?:{re.sub(r'[(][?]P<[^>]+>', '(?:', rule.pattern.pattern)})" for rule in RULES), re.IGNORECASE
)

UNKNOWN_RULE = Rule(
    "ENGINE.UNKNOWN",
    UNKNOWN_TRACEBACK,
    NO_LINE,
    rank_rules.UNKNOWN_MESSAGE,
    rank_rules.UNKNOWN_REMEDY,
    certain=False,
)
HANG_RULE = Rule(
    "ENGINE.HANG",
    UNKNOWN_TRACEBACK,
    NO_LINE,
    rank_rules.HANG_MESSAGE,
    rank_rules.HANG_REMEDY,
    certain=False,
    next_candidate=True,
)
RANKS_WAITED_RULE = Rule(
    "ENGINE.RANKS_MISSING",
    UNKNOWN_TRACEBACK,
    NO_LINE,
    rank_rules.RANKS_WAITED_MESSAGE,
    "Look at the logs of the other ranks: one failed, or does not reach this host (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, firewall).",
    phase=JOIN,
    certain=False,
)
HANG_AFTER_INIT_RULE = Rule(
    "ENGINE.HANG_AFTER_INIT",
    UNKNOWN_TRACEBACK,
    NO_LINE,
    rank_rules.HANG_AFTER_INIT_MESSAGE,
    rank_rules.HANG_REMEDY,
    phase=JOIN,
    certain=False,
    next_candidate=True,
)

# Lines after the hit in which more numbers may stand, and lines above it that may belong to its traceback.
_LINES_AFTER = 8
_LINES_ABOVE = 120
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^Exception in thread|^Process \S+:$")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_EXCEPTION_NAME = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failed|Timeout|Mismatch|Interrupt|Exit)\b"
)
# Functions and code of a traceback that show what the process was doing, the most telling first.
_PHASE_FRAMES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        GRAPH_CAPTURE,
        re.compile(
            r"\bcapture_model\b|\bcapture_end\b|\bcapture_begin\b|torch\.cuda\.graph\(|\b_?capture_cudagraphs?\b|"
            r"cuda_graph_runner|CudaGraphRunner|capture_one_batch_size|init_(?:device|cuda)_graphs|\bprofile_cudagraph_memory\b"
        ),
    ),
    (
        PROFILE,
        re.compile(
            r"\bprofile_run\b|\bdetermine_available_memory\b|\bdetermine_num_available_blocks\b|\bprofile_max_num_token\b"
        ),
    ),
    (
        KV_CACHE,
        re.compile(
            r"initialize_kv_cache|initialize_from_config|_?allocate_kv_cache|init_memory_pool|\binitialize_cache\b"
        ),
    ),
    (
        LOAD,
        re.compile(
            r"\bload_model\b|\bload_weights\b|process_weights_after_loading|\bcreate_weights\b|\binitialize_model\b"
        ),
    ),
    (GRAPH_CAPTURE, re.compile(r"compile_or_warm_up_model|\bkernel_warmup\b|_dummy_sampler_run")),
    (
        SERVE,
        re.compile(r"\bexecute_model\b|\brun_busy_loop\b|event_loop_(?:normal|overlap)|\bforward_batch_generation\b"),
    ),
    (JOIN, re.compile(r"init_distributed_environment|init_process_group|\binit_torch_distributed\b|ncclCommInitRank")),
)


# Said only by an engine that had come up, for logs that begin later.
_HAD_STARTED = re.compile(r"EngineCore encountered a fatal error|EngineDeadError|Application shutdown complete")


@dataclass(frozen=True)
class Event:
    """One line that a rule knows. block: it and the lines after it of the same stream; above: those of its traceback."""

    rule: Rule
    line: LogLine
    numbers: dict[str, Any]
    phase: str
    block: str = ""
    above: tuple[str, ...] = ()


@dataclass(frozen=True)
class Story:
    """What the lines tell: events that still stand, and how far the start came. ready: the line that says that it serves."""

    events: tuple[Event, ...]
    ready: LogLine | None
    last: LogLine | None
    starts: int


def read_story(lines: Sequence[LogLine], back: int = 0) -> Story:
    """Only the last start in each log counts, or the one that many starts before it; what was overcome is left out."""
    current = _last_starts(lines, back)
    streams: dict[Any, list[int]] = {}
    for position, line in enumerate(current):
        streams.setdefault(line.stream, []).append(position)
    places = {position: (stream, index) for stream, found in streams.items() for index, position in enumerate(found)}
    events = []
    for position, line in enumerate(current):
        rule, match = _rule_for(line)
        if rule is None and not _TRACEBACK.search(line.text):
            continue
        stream, index = places[position]
        around = [current[number] for number in streams[stream]]
        event = _known(rule, match, around, index) if rule and match else _unknown(around, index)
        if event:
            events.append(event)
    ready = next((line for line in reversed(current) if READY.search(line.text)), None)
    if any(_HAD_STARTED.search(line.text) for line in current):
        events = [replace(event, phase=SERVE) if _without_phase(event) else event for event in events]
    standing = _still_standing(events, current, ready)
    marked = [line for line in current if any(mark.search(line.text) for _phase, mark in PHASE_MARKS)]
    starts = max((line.start for line in lines), default=0)
    return Story(tuple(standing), ready, marked[-1] if marked else None, starts)


def _without_phase(event: Event) -> bool:
    return event.rule.weight in DEATHS and not event.line.phase and event.phase == CONFIG


def _last_starts(lines: Sequence[LogLine], back: int) -> list[LogLine]:
    newest: dict[int, int] = {}
    for line in lines:
        newest[line.log] = max(newest.get(line.log, 0), line.start)
    return [line for line in lines if line.start == max(newest[line.log] - back, min(1, newest[line.log]))]


def _rule_for(line: LogLine) -> tuple[Rule | None, re.Match[str] | None]:
    if not _SOME_RULE.search(line.raw):
        return None, None
    best: tuple[Rule | None, re.Match[str] | None] = (None, None)
    for rule in RULES:
        # The program that wrote a line of the journal belongs to some of the patterns.
        match = rule.matches(line.text, line.level) or (rule.matches(line.raw, line.level) if line.program else None)
        if match and (best[0] is None or rule.weight < best[0].weight):
            best = (rule, match)
    return best


def _known(rule: Rule, match: re.Match[str], around: Sequence[LogLine], index: int) -> Event | None:
    line = around[index]
    above = traceback_above(around, index)
    block = "\n".join(part.text for part in around[index : index + _LINES_AFTER])
    if rule.frame and not any(rule.frame.search(text) for text in above):
        return None
    numbers = numbers_of(match)
    for pattern in rule.more:
        found = pattern.search(block)
        if found:
            numbers = {**numbers_of(found), **numbers}
    return Event(rule, line, numbers, rule.phase or _phase_at(line, above), block, above)


def traceback_above(around: Sequence[LogLine], index: int) -> tuple[str, ...]:
    """The lines of the traceback that ends at this line, top first."""
    found: list[str] = []
    for line in reversed(around[max(0, index - _LINES_ABOVE) : index]):
        if not (line.text.startswith(" ") or _FRAME.search(line.text) or line.text.strip(" ^~") == ""):
            break
        found.append(line.text)
    return tuple(reversed(found))


def _phase_at(line: LogLine, above: Sequence[str]) -> str:
    for phase, pattern in _PHASE_FRAMES:
        if any(pattern.search(text) for text in (*above, line.text)):
            return phase
    return line.phase or CONFIG


def _unknown(around: Sequence[LogLine], index: int) -> Event | None:
    """The exception at the end of the traceback that begins here, unless it only reports another one."""
    frame = ""
    for line in around[index + 1 : index + _LINES_ABOVE]:
        found = _FRAME.search(line.text)
        if found:
            frame = f"{found['file'].rsplit('/', 1)[-1]}:{found['line']}"
        elif _EXCEPTION_NAME.match(line.text.strip()) and not line.text.startswith(" "):
            if rank_rules.SECONDARY.search(line.text) or line.level in ("DEBUG", "INFO", "WARNING"):
                return None
            numbers = {"exception_text": line.text.strip()[:300], "frame_text": f" (at {frame})" if frame else ""}
            above = tuple(part.text for part in around[index : around.index(line)])
            return Event(UNKNOWN_RULE, line, numbers, _phase_at(line, above), line.text, above)
    return None


def later(one: LogLine, other: LogLine) -> bool | None:
    """Whether C(one) was written after C(other); None if nobody can tell."""
    if one.log == other.log:
        return one.number > other.number
    if one.time and other.time and one.clock == other.clock:
        return one.time > other.time
    return None


def _still_standing(events: Sequence[Event], lines: Sequence[LogLine], ready: LogLine | None) -> list[Event]:
    stops = [line for line in lines if STOPPED.search(line.text)]
    standing = [event for event in events if not _ended_on_purpose(event, stops)]
    standing = [event for event in standing if not _overcome(event, lines)]
    if ready is None:
        return standing
    after: list[Event] = []
    for event in standing:
        order = later(event.line, ready)
        if order or (order is None and event.rule.weight == KILLER):
            after.append(event)
    # Failures of single requests end nothing: they count only when the engine died or was killed.
    if not any(_fatal(event) for event in after):
        return []
    # The other ranks' logs without comparable times tell why.
    others = [event for event in standing if later(event.line, ready) is None and event not in after]
    return after + others


_FATAL_AFTER_READY = ("ENGINE.PORT_IN_USE", "ENGINE.OOM_LOAD")


def _fatal(event: Event) -> bool:
    return event.rule.weight in (*DEATHS, KILLER) or event.rule.id in _FATAL_AFTER_READY


def _ended_on_purpose(event: Event, stops: Sequence[LogLine]) -> bool:
    """Ranks that die after somebody has stopped the engine."""
    if event.rule.weight <= ROOT:
        return False
    return any(later(event.line, stop) or event.line is stop for stop in stops)


def _overcome(event: Event, lines: Sequence[LogLine]) -> bool:
    """A passing sign after which the start went on, in the same log."""
    if event.rule.survived and any(
        line.log == event.line.log and line.number > event.line.number and event.rule.survived.search(line.text)
        for line in lines
    ):
        return True
    if event.rule.weight not in PASSING:
        return False
    reached = max(_order(event.phase), _order(event.line.phase))
    waiting = event.rule.weight == WAITING
    return any(
        _order(line.phase) > reached or (waiting and _moves(line, reached))
        for line in lines
        if line.log == event.line.log and line.number > event.line.number
    )


def _moves(line: LogLine, reached: int) -> bool:
    """Whether the line itself shows that the phase goes on. Waiting said again does not."""
    if any(rule.weight == WAITING and rule.pattern.search(line.text) for rule in RULES):
        return False
    return any(number >= reached and mark.search(line.text) for number, (_phase, mark) in enumerate(PHASE_MARKS))


_ORDER = {phase: number for number, (phase, _mark) in enumerate(PHASE_MARKS)}


def _order(phase: str) -> int:
    return _ORDER.get(phase, -1)
