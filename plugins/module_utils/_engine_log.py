# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lines of the logs of engines, Ray and the host: who said it, when, and what is left without the prefixes.

PRIVATE to this collection. Reads the journal (short and ISO), Docker, vLLM 0.4 to 0.32, Ray's copies of its workers' output,
SGLang, NCCL and torch; prefixes may be nested in any order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Phases of a start as results name them, in the order in which an engine passes them.
CONFIG, JOIN, LOAD, PROFILE = "config", "join", "load", "profile"
KV_CACHE, GRAPH_CAPTURE, SERVE = "kv_cache", "graph_capture", "serve"
PHASES = (CONFIG, JOIN, LOAD, PROFILE, KV_CACHE, GRAPH_CAPTURE, SERVE)

# What is looked at in one line. The longest message that is known, the list of all architectures, has 15,000 characters.
MOST_CHARACTERS = 20_000
# Clocks of two kinds of lines may be apart: times are compared within one kind only.
JOURNAL_CLOCK, ENGINE_CLOCK = "journal", "engine"

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_MONTHS = {
    name: number
    for number, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1
    )
}
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
# journalctl -o short, short-precise and short-full; -o short-iso and short-iso-precise.
_JOURNAL = (
    re.compile(
        r"^(?P<month_name>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) " + _CLOCK + r"(?:\.\d+)? (?P<host>[\w.-]+) "
        r"(?P<program>[^\s\[:]+)(?:\[\d+\])?: ?"
    ),
    re.compile(
        r"^\d{4}-(?P<month>\d\d)-(?P<day>\d\d)T" + _CLOCK + r"(?:[.,]\d+)?(?:[+-]\d\d:?\d\d|Z) (?P<host>[\w.-]+) "
        r"(?P<program>[^\s\[:]+)(?:\[\d+\])?: ?"
    ),
    re.compile(
        r"^[A-Z][a-z]{2} \d{4}-(?P<month>\d\d)-(?P<day>\d\d) " + _CLOCK + r"(?:\.\d+)? [A-Z]+ (?P<host>[\w.-]+) "
        r"(?P<program>[^\s\[:]+)(?:\[\d+\])?: ?"
    ),
)
# dmesg -T, docker logs --timestamps, docker compose logs.
_STAMPS = (
    re.compile(r"^\[[A-Z][a-z]{2} (?P<month_name>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) " + _CLOCK + r" \d{4}\] ?"),
    re.compile(r"^\d{4}-(?P<month>\d\d)-(?P<day>\d\d)T" + _CLOCK + r"\.\d+Z ?"),
)
_COMPOSE = re.compile(r"^[\w.-]+ +\| ")
# (EngineCore_DP0 pid=1094), (RayWorkerProc pid=330, ip=10.99.0.2), (VllmWorker rank=3 pid=1090), (raylet), (autoscaler +14s)
_PROCESS = re.compile(
    r"^\((?P<name>[A-Za-z][\w ]*?)?(?P<facts>(?:[ ,]*(?:rank=\[?\d+\]?|pid=\d+|ip=[\d.:a-f]+|local_rank=\d+|\+\d+\w+))*)\) ?"
)
_FACT = re.compile(r"(rank|pid|ip)=\[?([\d.:a-f]+)")
# ERROR 08-24 10:11:12 [core.py:1161]; older vLLM has no brackets: INFO 08-19 07:51:03 model_runner.py:732]
_VLLM = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<month>\d\d)-(?P<day>\d\d) "
    + _CLOCK
    + r" \[?[\w./-]+\.py:\d+\] ?"
)
# [2026-08-28 10:40:01,117 E 211 211] of Ray's servers, [2026-04-22 21:34:20 TP1] of SGLang, [2026-04-22 21:34:20] of NCCL.
_BRACKET = re.compile(
    r"^\[\d{4}-(?P<month>\d\d)-(?P<day>\d\d) " + _CLOCK + r"(?:[,.]\d+)?(?: (?P<letter>[DIWEFC])(?: \d+)+)?"
    r"(?P<ranks>(?: (?:DP|TP|PP|EP)\d+)*)\] ?"
)
# 2026-03-06 11:40:01,412<tab>INFO worker.py:1821 -- of Ray's Python; 2026-03-06 11:40:01,412 - name - ERROR - of logging.
_PYTHON = re.compile(
    r"^\d{4}-(?P<month>\d\d)-(?P<day>\d\d) "
    + _CLOCK
    + r"[,.]\d+\s+(?:- \S+ - )?(?P<level>DEBUG|INFO|SUCC|WARNING|ERROR|CRITICAL)"
    r"(?: [\w.]+:\d+ --| -)? ?"
)
_TORCH_RANK = re.compile(r"^\[rank(?P<rank>\d+)\]: ?")
# torch's C++: [W1130 13:30:56.391 utils.cpp:41]; the letter is the level.
_TORCH_NATIVE = re.compile(r"^\[?(?P<letter>[IWEF])(?P<month>\d\d)(?P<day>\d\d) " + _CLOCK + r"\.\d+ ")
_NCCL = re.compile(r"^(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[\d+\] (?=.*NCCL )")
_UVICORN = re.compile(r"^(?P<level>INFO|WARNING|ERROR|CRITICAL): {2,}")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\](?: \(Ray deduplicates.*\))?$")
# What Ray guesses when a worker is gone (killed for memory, ray stop, a crash): it stands there whatever has happened.
_GUESSES = re.compile(r"Some common causes include: \(1\).*")
# An error by its level, on every healthy start without Ray's dashboard.
_HARMLESS = re.compile(
    r"^.*Failed to establish connection to the metrics exporter agent\. Metrics will not be exported.*$"
)
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL", "C": "CRITICAL"}
# Worker_TP1, Worker_TP1_EP1, VllmWorker-1: the number is the rank while there is one pipeline stage.
_NAMED_RANK = re.compile(r"(?:_TP|VllmWorker-|^TP)(\d+)")
_LATER_STAGE = re.compile(r"PP[1-9]")
_OWN_RANK = re.compile(r"world_size=\d+ rank=(\d+)|\brank (\d+) in world size \d+|comm \S+ rank (\d+) nranks \d+")

# Which phase a line shows. Later vLLM versions profile graphs before they size the cache: that is part of profiling.
PHASE_MARKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (CONFIG, re.compile(r"API server version|non-default args|Resolved architecture|server_args=")),
    (
        JOIN,
        re.compile(
            r"placement group|world_size=\d+ rank=\d+|NCCL version|Init torch distributed begin|Init START|"
            r"rank \d+ in world size|Started a local Ray instance|Connecting to existing Ray cluster|Connected all (?:rings|trees)"
        ),
    ),
    (
        LOAD,
        re.compile(r"Starting to load model|checkpoint shards|Load weight begin|Loading (?:model )?weights\b(?! took)"),
    ),
    (
        PROFILE,
        re.compile(
            r"Model loading took|[Ll]oading (?:model )?weights took|Load weight end|[Mm]emory profiling|Dynamo bytecode|"
            r"Compiling a graph|torch\.compile takes|Profiling CUDA graph|Encoder cache will be initialized"
        ),
    ),
    (
        KV_CACHE,
        re.compile(
            r"Available KV cache memory|KV cache size|# (?:GPU|cuda) blocks|KV Cache is allocated|Memory pool end"
        ),
    ),
    (
        GRAPH_CAPTURE,
        re.compile(
            r"Capturing CUDA graph|Capturing the model for CUDA graphs|Capture cuda graph begin|Capturing batches"
        ),
    ),
    (
        SERVE,
        re.compile(
            r"Graph capturing finished|Capture cuda graph end|init engine .* took|Starting vLLM (?:API )?server|"
            r"Started server process|Application startup complete|fired up and ready"
        ),
    ),
)
READY = re.compile(r"Application startup complete|Uvicorn running on|The server is fired up and ready")
# A new start of the engine: what is above it in the same log belongs to an earlier one.
START = re.compile(
    r"vLLM API server version|non-default args|server_args=ServerArgs\(|Start(?:ed|ing) dgxspark-vllm\.service"
)
# One start has several such lines close together: systemd's, the banner, the arguments.
_LINES_OF_A_BANNER = 15
# Somebody stops the engine: its ranks die after this and nothing is wrong.
STOPPED = re.compile(
    r"Stopping \S*(?:dgxspark|vllm|sglang|ray)\S*\.service|\[shutdown\] API server: shutdown triggered|KeyboardInterrupt: terminated"
)


@dataclass(frozen=True)
class LogLine:
    """One line. log: number of its text; raw: as it stands (without colours); text: without prefixes; time: sortable within
    one clock, or empty; start: how many engine starts the text has shown so far; phase: the furthest of this start so far."""

    log: int
    number: int
    raw: str
    text: str
    host: str = ""
    program: str = ""
    process: str = ""
    pid: int | None = None
    rank: int | None = None
    level: str = ""
    time: tuple[int, ...] = ()
    clock: str = ""
    start: int = 0
    phase: str = ""

    @property
    def stream(self) -> tuple[int, str, str, int | None]:
        """Lines of one stream follow each other, whatever other processes print in between."""
        return (self.log, self.host, self.process if self.pid is None else "", self.pid)


@dataclass
class _Prefixes:
    host: str = ""
    program: str = ""
    process: str = ""
    pid: int | None = None
    rank: int | None = None
    level: str = ""
    time: tuple[int, ...] = ()
    clock: str = ""


def parse_logs(texts: Iterable[str]) -> list[LogLine]:
    """All lines that are not empty, in the order given."""
    lines: list[LogLine] = []
    for log, text in enumerate(texts):
        lines += _parse_log(log, text)
    return _with_ranks(lines)


def _parse_log(log: int, text: str) -> list[LogLine]:
    lines = []
    start, furthest, last_start = 0, -1, 0
    # A progress bar overwrites its line.
    for number, written in enumerate(re.split(r"\r\n|\n|\r", _ANSI.sub("", text)), 1):
        raw = _HARMLESS.sub("", _GUESSES.sub("", written))
        if not raw.strip():
            continue
        found = _Prefixes()
        rest = _REPEATED.sub("", _strip_prefixes(raw, found))
        if START.search(rest):
            if not start or furthest > 0 or number - last_start > _LINES_OF_A_BANNER:
                start, furthest = start + 1, -1
            last_start = number
        for position, (_phase, mark) in enumerate(PHASE_MARKS):
            if position > furthest and mark.search(rest):
                furthest = position
        phase = PHASE_MARKS[furthest][0] if furthest >= 0 else ""
        lines.append(
            LogLine(log, number, raw.rstrip(), rest[:MOST_CHARACTERS], **found.__dict__, start=start, phase=phase)
        )
    return lines


def _strip_prefixes(raw: str, found: _Prefixes) -> str:
    rest = _COMPOSE.sub("", raw)
    for pattern in (*_JOURNAL, *_STAMPS):
        match = pattern.match(rest)
        if match:
            _note_time(match, found, JOURNAL_CLOCK if pattern in _JOURNAL else ENGINE_CLOCK)
            if pattern in _JOURNAL:
                found.host, found.program = match["host"], match["program"]
            rest = rest[match.end() :]
            break
    while True:
        for take in (_take_process, _take_stamp, _take_rank, _take_nccl):
            shorter = take(rest, found)
            if shorter != rest:
                rest = shorter
                break
        else:
            return rest


def _take_process(rest: str, found: _Prefixes) -> str:
    match = _PROCESS.match(rest)
    if not match or not (match["facts"] or match["name"] in ("raylet", "autoscaler", "gcs_server")):
        return rest
    facts = dict(_FACT.findall(match["facts"]))
    found.process = (match["name"] or found.process).strip()
    if "pid" in facts:
        found.pid = int(facts["pid"])
    if "ip" in facts:
        # Ray's copy of a line of another host: the journal's host only passes it on.
        found.host = facts["ip"]
    if "rank" in facts:
        found.rank = int(facts["rank"])
    else:
        _note_named_rank(found.process, found)
    return rest[match.end() :]


def _note_named_rank(name: str, found: _Prefixes) -> None:
    named = _NAMED_RANK.search(name)
    if named and not _LATER_STAGE.search(name):
        found.rank = int(named[1])


def _take_stamp(rest: str, found: _Prefixes) -> str:
    for pattern in (_VLLM, _BRACKET, _PYTHON, _TORCH_NATIVE, _UVICORN):
        match = pattern.match(rest)
        if not match:
            continue
        values = match.groupdict()
        found.level = values.get("level") or _LETTERS.get(values.get("letter") or "", "") or found.level
        if values.get("hour"):
            _note_time(match, found, ENGINE_CLOCK)
        if values.get("ranks"):
            _note_named_rank(values["ranks"].strip(), found)
            found.process = found.process or values["ranks"].strip()
        return rest[match.end() :]
    return rest


def _take_rank(rest: str, found: _Prefixes) -> str:
    match = _TORCH_RANK.match(rest)
    if not match:
        return rest
    found.rank = int(match["rank"])
    found.process = found.process or f"rank{match['rank']}"
    return rest[match.end() :]


def _take_nccl(rest: str, found: _Prefixes) -> str:
    match = _NCCL.match(rest)
    if not match:
        return rest
    found.host = match["host"]
    found.pid = found.pid or int(match["pid"])
    return rest[match.end() :]


def _note_time(match: re.Match[str], found: _Prefixes, clock: str) -> None:
    """The journal's clock is kept where a line has several: it is the same for all processes of a host."""
    if found.time:
        return
    values = match.groupdict()
    month = _MONTHS.get(values.get("month_name") or "") or int(values.get("month") or 0)
    found.time = (month, *(int(values[name]) for name in ("day", "hour", "minute", "second")))
    found.clock = clock


def _with_ranks(lines: Sequence[LogLine]) -> list[LogLine]:
    """Processes that have said once which rank they are keep it."""
    known: dict[tuple[int, str, int], int] = {}
    for line in lines:
        if line.pid is None:
            continue
        own = _OWN_RANK.search(line.text)
        rank = int(next(group for group in own.groups() if group)) if own else line.rank
        if rank is not None:
            known.setdefault((line.log, line.host, line.pid), rank)
    return [
        line
        if line.rank is not None or line.pid is None or (line.log, line.host, line.pid) not in known
        else LogLine(**{**line.__dict__, "rank": known[line.log, line.host, line.pid]})
        for line in lines
    ]
