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
    MOST_CHARACTERS,
    PHASE_MARKS,
    PROFILE,
    READY,
    SERVE,
    START,
    STOPPED,
    LogLine,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_rule import (
    DEAD,
    DEATH,
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
# Every line that a rule knows has one of these, whatever its letters' case: most lines have none, and cost nothing.
NEEDLES = (
    *(
        "abort",
        "attempted to load",
        "no gpu",
        "alloc",
        "already running",
        "assert",
        "build stopped",
        "can't",
        "cannot",
        "clients joined",
    ),
    *("closed", "completion from", "connect", "core dumped", "could not", "crash", "custom code", "dead"),
    *("denied", "died", "disabled", "divisible by", "does not", "eaddrinuse", "error", "exceeds the total"),
    *("exception", "exit", "fail", "fault", "format", "forward compatibility", "gated", "gcs server"),
    *("greater than", "health check", "ibv_", "ifa != nullptr", "illegal", "in use", "incompatible"),
    *("incomplete", "inductor.exc", "insufficient", "invalid", "is restricted", "kill", "larger than"),
    *("less than", "libcuda", "makedevice", "memory", "mismatch", "missing", "module or parameter"),
    *("must be", "ncclunhandled", "ninja", "no authentication", "no available", "no config", "no cuda"),
    *("no device", "no kernel", "no module", "no network", "no node info", "no nvidia", "no parameter"),
    *("no raylet", "no space", "no specific", "no such", "no supported", "not a local", "not available"),
    *("not compatible", "not divisible", "not enough", "not exist", "not find", "not found", "not have"),
    *("not initialized", "not reachable", "not recognize", "not started", "not supported", "nv_err"),
    *("nvcc fatal", "occupied", "off the bus", "offline", "oken authentication", "other ranks"),
    *("placement group", "ptxas", "quota", "requires installation", "reset by peer", "resolved architecture"),
    *("resource request", "restricted", "sending sig", "sigabrt", "sigbus", "sigill", "signal", "sigquit"),
    *("sigsegv", "smaller than", "socket interface", "std::bad_alloc", "supported in vllm", "terminate"),
    *("timed out", "timeout", "token", "too old", "trust_remote_code", "unable", "unavailable"),
    *("uncorrectable", "undefined", "unexpectedly", "unique ip", "unknown", "unrecognized", "unresolvable"),
    *("unspecified", "unsupported", "ut of cuda", "ut of device", "ut of gpu", "waited", "waiting for"),
    *("xid",),
)


UNKNOWN_RULE = Rule(
    "ENGINE.UNKNOWN",
    UNKNOWN_TRACEBACK,
    NO_LINE,
    rank_rules.UNKNOWN_MESSAGE,
    rank_rules.UNKNOWN_REMEDY,
    certain=False,
)
FIRST_ERROR_RULE = replace(UNKNOWN_RULE, weight=DEATH)
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
_OF_A_REQUEST = re.compile(r"Exception in ASGI application")
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
    events = [_placed(event, current) for event in [*events, *_complaints(events, current)]]
    standing = _still_standing(events, current, ready)
    marked = [line for line in current if any(mark.search(line.text) for _phase, mark in PHASE_MARKS)]
    starts = max((line.start for line in lines), default=0)
    return Story(tuple(standing), ready, marked[-1] if marked else None, starts)


def _complaints(events: Sequence[Event], lines: Sequence[LogLine]) -> list[Event]:
    """For a death of which neither a rule nor a traceback tells more: the first line that is logged as an error."""
    known = {(event.line.log, event.line.number) for event in events}
    told = any(event.rule.weight < DEAD for event in events)
    if told or not any(event.rule.weight == DEAD for event in events):
        return []
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        new = (line.log, line.number) not in known and line.text.strip() and not line.text.startswith(" ")
        # What stands above a traceback says what was tried, and the traceback why it failed.
        heading = following is not None and _TRACEBACK.search(following.text)
        secondary = heading or rank_rules.SECONDARY.search(line.text) or _TRACEBACK.search(line.text)
        if line.level in ("ERROR", "CRITICAL") and new and not secondary:
            numbers = {"exception_text": line.text.strip()[:300], "frame_text": ""}
            return [Event(FIRST_ERROR_RULE, line, numbers, line.phase or CONFIG, line.text)]
    return []


def _placed(event: Event, lines: Sequence[LogLine]) -> Event:
    """Logs of the host do not say how far the engine was: its own log does."""
    if event.rule.phase or event.line.phase or event.phase != CONFIG:
        return event
    others = [line for line in lines if line.log != event.line.log and line.phase and not later(line, event.line)]
    furthest = max(others, key=lambda line: _order(line.phase), default=None)
    return replace(event, phase=furthest.phase) if furthest else event


def _without_phase(event: Event) -> bool:
    return event.rule.weight in DEATHS and not event.line.phase and event.phase == CONFIG


def _last_starts(lines: Sequence[LogLine], back: int) -> list[LogLine]:
    newest: dict[int, int] = {}
    for line in lines:
        newest[line.log] = max(newest.get(line.log, 0), line.start)
    return [line for line in lines if line.start == max(newest[line.log] - back, min(1, newest[line.log]))]


def _rule_for(line: LogLine) -> tuple[Rule | None, re.Match[str] | None]:
    start = line.raw[:MOST_CHARACTERS]
    lowered = start.lower()
    if not any(needle in lowered for needle in NEEDLES):
        return None, None
    best: tuple[Rule | None, re.Match[str] | None] = (None, None)
    for rule in RULES:
        # The program that wrote a line of the journal belongs to some of the patterns.
        match = rule.matches(line.text, line.level) or (rule.matches(start, line.level) if line.program else None)
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
    if index and _OF_A_REQUEST.search(around[index - 1].text):
        return None
    for line in around[index + 1 : index + _LINES_ABOVE]:
        found = _FRAME.search(line.text)
        if found:
            frame = f"{found['file'].rsplit('/', 1)[-1]}:{found['line']}"
        elif _EXCEPTION_NAME.match(line.text.strip()) and not line.text.startswith(" "):
            if "RayTaskError" in line.text:
                # The failure of another rank follows, without a heading of its own.
                continue
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
    standing = [event for event in standing if not _overcome(event, lines) and not _before(event, lines)]
    if ready is None:
        return standing
    after: list[Event] = []
    for event in standing:
        if event.rule is UNKNOWN_RULE and event.line.process == "APIServer":
            # A request that failed; what ends an engine fails in the engine's core or in a rank.
            continue
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


def _before(event: Event, lines: Sequence[LogLine]) -> bool:
    """What the host killed before this start is another story."""
    return event.rule.weight == KILLER and any(
        line.log != event.line.log and START.search(line.text) and later(line, event.line) for line in lines
    )


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
