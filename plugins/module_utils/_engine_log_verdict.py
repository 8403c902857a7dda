# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why did the engine not come up? From the logs of all ranks to one cause, with what else they say.

PRIVATE to this collection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _ladder as ladder
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log import JOIN, LogLine, parse_logs
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_details import complete
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_events import (
    HANG_AFTER_INIT_RULE,
    HANG_RULE,
    RANKS_WAITED_RULE,
    Event,
    Story,
    later,
    read_story,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_facts import Facts, facts_of, without_secrets
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_rule import (
    DEATH,
    DEATHS,
    FALLBACK,
    KILLER,
    LOST,
    PASSING,
    ROOT,
    UNKNOWN_TRACEBACK,
    WAITING,
    filled,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding

CERTAIN, LIKELY, UNKNOWN = "certain", "likely", "unknown"
# vLLM says every 60 s that no rank answers, also while a rank compiles for minutes: this often in a row is a hang.
HANG_SIGNS = 3
# vLLM says after 10, 30, 70, 150, 310 s that it waits for GPUs; on a healthy start it says so once at most.
PLACEMENT_SECONDS = 30
# The head's own log: only there a silence after NCCL's initialisation means something.
_OF_THE_HEAD = re.compile(r"API server version|non-default args|LLM engine|server_args=|Init torch distributed begin")
_GENERIC_IMPLEMENTATION = re.compile(r"Resolved architecture: (Transformers\w+)")


@dataclass(frozen=True)
class Cause:
    """confidence: certain (a line names it), likely (it follows from what the lines say), unknown."""

    id: str
    phase: str
    confidence: str
    message: str
    remedy: str
    evidence: str
    rank: int | None = None
    host: str | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    next_candidate: bool = False

    @property
    def subject(self) -> str:
        if self.rank is not None:
            return f"rank {self.rank}" + (f" on {self.host}" if self.host else "")
        return self.host or "engine"

    def as_dict(self) -> dict[str, Any]:
        names = ("id", "rank", "host", "phase", "numbers", "confidence")
        return {name: getattr(self, name) for name in names}

    def as_finding(self, severity: str = ERROR) -> Finding:
        return Finding(self.id, severity, self.subject, self.message, self.remedy, self.evidence)


@dataclass(frozen=True)
class Diagnosis:
    cause: Cause | None
    rung: ladder.Rung | None
    findings: tuple[Finding, ...]
    settings: ladder.EngineSettings

    @property
    def next_candidate(self) -> bool:
        return bool(self.cause and self.cause.next_candidate)


@dataclass(frozen=True)
class Hosts:
    """Which host has which rank and address, as the plan says. Without a plan nothing is known."""

    by_address: dict[str, str] = field(default_factory=dict)
    by_rank: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Hosts:
        hosts = cls()
        for host in plan.get("hosts") or ():
            name = str(host["name"])
            for address in (
                *(host.get("fabric_addresses") or ()),
                host.get("control_address"),
                host.get("management_address"),
            ):
                if address:
                    hosts.by_address[str(address)] = name
            if host.get("rank") is not None and int(host.get("gpus") or 1) == 1:
                hosts.by_rank[int(host["rank"])] = name
        return hosts

    def learn(self, lines: Sequence[LogLine]) -> None:
        """What ranks themselves have said, where the plan knows nothing."""
        for line in lines:
            if line.rank is not None and line.host and line.process:
                self.by_rank.setdefault(line.rank, self.by_address.get(line.host, line.host))

    def resolve(self, host: str, rank: int | None) -> tuple[str | None, int | None]:
        name = self.by_address.get(host, host)
        if rank is not None and rank in self.by_rank:
            # A line that the head's log passes on stands under the head's name, whoever said it.
            return self.by_rank[rank], rank
        own = [known for known, place in self.by_rank.items() if place == name]
        return name or None, rank if rank is not None or len(own) != 1 else own[0]


def diagnose(texts: Sequence[str], plan: Mapping[str, Any] | None = None) -> Diagnosis:
    """The cause, the next rung of the ladder and all findings. plan: what was asked for; see limits_of for what it may hold."""
    plan = plan or {}
    facts = facts_of(texts)
    lines = parse_logs(texts)
    hosts = Hosts.of(plan)
    hosts.learn(lines)
    # The log says what this start really had: the plan's values may have been changed by a rung since.
    settings = ladder.EngineSettings.of({**(plan.get("engine") or {}), **facts.settings, **_own(plan)})
    limits = ladder.limits_of(plan, settings)
    story = read_story(lines)
    events = [*story.events, *_silence(story, lines, plan)]
    chosen = _choose(_counting(events, plan))
    if (
        story.starts > 1
        and not plan.get("stalled_seconds")
        and story.ready is None
        and (chosen is None or chosen.rule.silent)
    ):
        # It is being started again: why the start before failed.
        earlier = read_story(lines, back=1)
        before = [] if earlier.ready else _counting(earlier.events, plan)
        chosen, events = (_choose(before), list(earlier.events)) if before else (chosen, events)
    if chosen is None:
        return Diagnosis(None, None, tuple(_without_cause(texts, lines, story, facts)), settings)
    known_context = {"settings": settings, "limits": limits, "plan": plan, "starts": story.starts}
    cause = _cause(chosen, facts, hosts, known_context)
    rung = ladder.next_rung(cause.id, cause.phase, cause.numbers, settings, limits)
    if cause.id == "ENGINE.FREE_MEMORY_SHORT" and cause.numbers.get("restart_count"):
        # A loop of restarts has to be stopped first: it holds the memory.
        rung = None
    others = _others(events, chosen, cause, facts, hosts, known_context)
    findings = (cause.as_finding(), *others, *_notes(lines, facts, cause))
    return Diagnosis(cause, rung, findings, settings)


def _own(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plan[name] for name in ladder.KNOWN_SETTINGS if plan.get(name) is not None}


def _counting(events: Sequence[Event], plan: Mapping[str, Any]) -> list[Event]:
    """Without signs that are no failure by themselves: short waits, and a generic implementation that nothing fails in."""
    stalled = bool(plan.get("stalled_seconds"))
    silent = [event for event in events if "silent_seconds" in event.numbers and event.rule.weight == WAITING]
    failed = any(event.rule.weight not in (FALLBACK, WAITING) for event in events)
    return [
        event
        for event in events
        if not (event.rule.weight == FALLBACK and not failed)
        and not (event in silent and len(silent) < HANG_SIGNS and not stalled)
        and not (
            int(event.numbers.get("waited_seconds") or PLACEMENT_SECONDS) < PLACEMENT_SECONDS
            and event.rule.weight == WAITING
        )
    ]


def _choose(events: Sequence[Event]) -> Event | None:
    """The smallest weight wins; of equal ones the earlier, by time where all have the same clock, otherwise as given."""
    events = _without_aftermath(events)
    if not events:
        return None
    died = any(event.rule.weight in (*DEATHS, KILLER, ROOT) for event in events)
    weight = min(event.rule.weight for event in events)
    same = [event for event in events if event.rule.weight == weight]
    if weight == UNKNOWN_TRACEBACK and not died:
        same = [event for event in same if event.rule.id != "ENGINE.UNKNOWN" or _at_the_end(event)] or []
        if not same:
            rest = [event for event in events if event.rule.weight != weight]
            return _choose(rest)
    clocks = {event.line.clock if event.line.time else "" for event in same}
    if len(clocks) == 1 and "" not in clocks:
        same = sorted(same, key=lambda event: event.line.time)
    # The last of several lines says how long the wait has taken.
    return same[-1] if weight == WAITING else _best_told(same)


def _without_aftermath(events: Sequence[Event]) -> list[Event]:
    """Without unknown tracebacks that came after a rank was lost: what is done with it then fails, in words of its own."""
    losses = [event for event in events if event.rule.weight in (LOST, DEATH)]
    return [
        event
        for event in events
        if event.rule.id != "ENGINE.UNKNOWN" or not any(later(event.line, loss.line) for loss in losses)
    ]


def _at_the_end(event: Event) -> bool:
    """A traceback after which nothing but its own last lines follows: nobody caught it."""
    return not event.line.level or event.line.level in ("ERROR", "CRITICAL")


def _best_told(same: Sequence[Event]) -> Event:
    """The same failure is often said twice: the telling with more numbers of the first one's kind and rank."""
    first = same[0]
    alike = [event for event in same if event.rule.id == first.rule.id and _near(event, first)]
    return max(alike, key=lambda event: len(event.numbers))


def _near(one: Event, other: Event) -> bool:
    if one.line.rank != other.line.rank and None not in (one.line.rank, other.line.rank):
        return False
    return one.phase == other.phase


def _silence(story: Story, lines: Sequence[LogLine], plan: Mapping[str, Any]) -> list[Event]:
    """An engine that hangs says nothing: the log ends, and the caller has waited."""
    if story.ready or story.last is None or any(event.rule.weight not in PASSING for event in story.events):
        return []
    last = story.last
    silent = int(plan.get("stalled_seconds") or 0)
    numbers = {"silent_seconds": silent} if silent else {}
    own = [line for line in lines if line.log == last.log and line.start == last.start]
    if last.phase == JOIN and any(_OF_THE_HEAD.search(line.text) for line in own) and not story.events:
        if any(_CONNECTED.search(line.text) for line in lines):
            return [Event(HANG_AFTER_INIT_RULE, _end_of(lines, last.log), numbers, JOIN)]
        if any(_WAITS_FOR_RANKS.search(line.text) for line in own):
            return [Event(RANKS_WAITED_RULE, _end_of(lines, last.log), numbers, JOIN)]
    if silent and not story.events:
        return [Event(HANG_RULE, _end_of(lines, last.log), numbers, last.phase)]
    return []


_CONNECTED = re.compile(
    r"Init COMPLETE|Connected all (?:rings|trees)|NCCL version|is using nccl|Init torch distributed begin|rank \d+ in world size|"
    r"CustomAllreduce is disabled|Channel \d+/\d+ :"
)
_WAITS_FOR_RANKS = re.compile(r"world_size=\d+ rank=\d+")


def _end_of(lines: Sequence[LogLine], log: int) -> LogLine:
    return [line for line in lines if line.log == log][-1]


def _cause(event: Event, facts: Facts, hosts: Hosts, known: Mapping[str, Any]) -> Cause:
    """The event with everything that its message and remedy need."""
    told = complete(event, facts, known)
    # The executor of the head tells which rank died: the line's own host is not that rank's.
    reported = told.rank is not None and told.rank != event.line.rank and "VllmWorker" not in event.line.text
    own_host = "" if reported else event.line.host
    host, rank = hosts.resolve(told.host or own_host, told.rank if told.rank is not None else event.line.rank)
    where = f" on rank {rank}" if rank is not None else ""
    where += f" on {host}" if host and not where else f" ({host})" if host else ""
    who = where.replace(" on r", "R", 1) if rank is not None else f"A rank{where}"
    values = {**told.texts, "where": where, "who": who, "phase": told.phase}
    confidence = CERTAIN if event.rule.certain else LIKELY
    if event.rule.id == "ENGINE.UNKNOWN":
        confidence = UNKNOWN
    elif event.rule.weight in DEATHS:
        confidence = LIKELY
    return Cause(
        told.id,
        told.phase,
        told.confidence or confidence,
        filled(told.message, values),
        filled(told.remedy, values),
        without_secrets(event.line.raw.strip()),
        rank,
        host,
        told.numbers,
        event.rule.next_candidate,
    )


def _others(
    events: Sequence[Event], chosen: Event, cause: Cause, facts: Facts, hosts: Hosts, known: Mapping[str, Any]
) -> list[Finding]:
    """Root causes of other kinds or on other ranks as warnings, and one line for what only followed."""
    seen = {(cause.id, cause.subject)}
    others: list[Finding] = []
    followed: list[Event] = []
    for event in events:
        if event is chosen:
            continue
        if event.rule.weight in DEATHS or event.rule.weight in PASSING:
            followed.append(event)
            continue
        other = _cause(event, facts, hosts, known)
        if (other.id, other.subject) not in seen and (other.id != cause.id or other.rank not in (None, cause.rank)):
            seen.add((other.id, other.subject))
            others.append(other.as_finding(WARNING))
    if followed:
        lines = list(dict.fromkeys(without_secrets(event.line.raw.strip()) for event in followed))
        others.append(
            Finding(
                "ENGINE.CONSEQUENCE",
                INFO,
                cause.subject,
                f"{len(lines)} further line(s) report what followed from it.",
                "",
                lines[0],
            )
        )
    return others


def _notes(lines: Sequence[LogLine], facts: Facts, cause: Cause | None) -> list[Finding]:
    notes = []
    if facts.key_printed:
        notes.append(
            Finding(
                "ENGINE.KEY_PRINTED",
                WARNING,
                "log",
                "This version of the engine prints the API's key into its log.",
                "Change the key, give it by VLLM_API_KEY from a file, and use a version that does not print it.",
                without_secrets(facts.key_printed.strip()),
            )
        )
    generic = next((line for line in lines if _GENERIC_IMPLEMENTATION.search(line.text)), None)
    if generic and (cause is None or cause.id != "ENGINE.UNKNOWN_ARCHITECTURE"):
        notes.append(
            Finding(
                "ENGINE.GENERIC_IMPLEMENTATION",
                WARNING,
                "engine",
                "The engine took the generic Transformers implementation: it does not know the architecture itself, and is slow.",
                "Use an image whose engine knows the model, and --model-impl vllm.",
                generic.raw.strip(),
            )
        )
    return notes


def _without_cause(texts: Sequence[str], lines: Sequence[LogLine], story: Story, facts: Facts) -> list[Finding]:
    notes = _notes(lines, facts, None)
    if not lines:
        what = "No log was given." if not texts else "The logs are empty."
        notes.append(Finding("ENGINE.NO_LOG", INFO, "log", what, "Give the logs of engine and Ray of all hosts."))
    elif story.ready is None and story.last is not None:
        notes.append(
            Finding(
                "ENGINE.NOT_READY",
                INFO,
                "engine",
                f"The log ends in phase {story.last.phase} without an error and without a sign that the engine serves.",
                "It may still run. If nothing has moved for long, say so (plan.stalled_seconds).",
                without_secrets(story.last.raw.strip()),
            )
        )
    return notes
