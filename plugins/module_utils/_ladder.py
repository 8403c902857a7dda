# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The bounded ladder: what to change in the engine after a memory failure, and what finally worked.

PRIVATE to this collection. Pure functions; names of settings are those of a preset's C(engine). Each rung follows from the diagnosed
cause and its numbers. Other causes never climb.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# A handful: each rung costs a start of ten minutes and more.
MAX_RUNGS = 5
# Utilization is changed in steps of vLLM's own precision. 0.02 to 0.05 below is what helped after failures in graph capture;
# the middle is taken, and the upper end where requests or allocations failed.
STEP = 0.01
GRAPH_UTILIZATION_DROP = 0.03
UTILIZATION_DROP = 0.05
# 0.70 to 0.85 are known to serve on this hardware (0.90 has run, but thin); a ladder does not climb above that band.
SAFE_UTILIZATION = 0.85
# More than this below what was asked for means that something else holds the memory: that is no case for a ladder.
MOST_UTILIZATION_DROP = 0.15
# GiB that stay free below what the driver says is free when the engine looks: readings of an idle host move by this much.
FREE_MARGIN_GIB = 1.0
# vLLM's own defaults, for logs that do not say the values: 0.92 since 0.2x (0.9 before), 256 sequences, 2048 batched tokens online.
DEFAULT_UTILIZATION = 0.92
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_BATCHED_TOKENS = 2048
# Below this a batch of one prompt chunk is slower than what it saves; a hybrid model's block may need more.
LEAST_BATCHED_TOKENS = 2048
# Captured at most after the rung; vLLM's default list goes up to 512.
FEW_CAPTURE_SIZES = (1, 2, 4, 8)

KNOWN_SETTINGS = (
    "utilization",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "cudagraph_capture_sizes",
    "enforce_eager",
)


@dataclass(frozen=True)
class EngineSettings:
    """What the engine was started with; None: its own default, or unknown."""

    utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    enforce_eager: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> EngineSettings:
        """From a preset's C(engine) or from what a log says; other keys are ignored."""
        known = {name: values[name] for name in KNOWN_SETTINGS if values.get(name) is not None}
        if "cudagraph_capture_sizes" in known:
            known["cudagraph_capture_sizes"] = tuple(int(size) for size in known["cudagraph_capture_sizes"])
        return cls(**known)

    def with_changes(self, changes: Mapping[str, Any]) -> EngineSettings:
        return EngineSettings.of({**asdict(self), **changes})


@dataclass(frozen=True)
class LadderLimits:
    """taken: names of the rungs so far, oldest first; asked: the settings before the first rung; min_context: the user's stated
    minimum; min_batched_tokens: the model's block; least_utilization: below it weights and overhead do not fit; total_gib: the
    memory of a host."""

    taken: tuple[str, ...] = ()
    asked: EngineSettings = field(default_factory=EngineSettings)
    min_context: int = 0
    min_batched_tokens: int = 0
    least_utilization: float = 0.0
    total_gib: float | None = None


@dataclass(frozen=True)
class Rung:
    """number: from 1; changes: settings with their new values; why: one line."""

    number: int
    name: str
    changes: dict[str, Any]
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {"rung": self.number, "name": self.name, "changes": dict(self.changes), "why": self.why}


@dataclass(frozen=True)
class _Situation:
    numbers: Mapping[str, Any]
    settings: EngineSettings
    limits: LadderLimits

    @property
    def utilization(self) -> float:
        return float(self.settings.utilization or self.numbers.get("utilization") or DEFAULT_UTILIZATION)

    @property
    def lowest_utilization(self) -> float:
        asked = self.limits.asked.utilization or self.utilization
        return max(self.limits.least_utilization, asked - MOST_UTILIZATION_DROP)

    @property
    def total_gib(self) -> float | None:
        total = self.numbers.get("total_gib") or self.limits.total_gib
        return float(total) if total else None

    def times(self, name: str) -> int:
        return self.limits.taken.count(name)


# A step proposes changes and says why, or None when there is nothing (more) to gain from it.
_Proposal = tuple[dict[str, Any], str]


def _rounded(utilization: float) -> float:
    return round(utilization, 2)


def _drop_utilization(now: _Situation, drop: float) -> _Proposal | None:
    lower = _rounded(now.utilization - drop)
    if lower < _rounded(now.lowest_utilization) or lower <= 0:
        return None
    gib = f", {drop * now.total_gib:.1f} GiB a host," if now.total_gib else ""
    return {
        "utilization": lower
    }, f"utilization {now.utilization:g} to {lower:g}: leaves {drop * 100:.0f} %{gib} to what failed"


def _graph_utilization(now: _Situation) -> _Proposal | None:
    return _drop_utilization(now, GRAPH_UTILIZATION_DROP)


def _lower_utilization(now: _Situation) -> _Proposal | None:
    return _drop_utilization(now, UTILIZATION_DROP)


def _fitting_utilization(now: _Situation) -> _Proposal | None:
    """What the free memory that the engine saw allows."""
    free, total = now.numbers.get("free_gib"), now.total_gib
    if free is None or not total:
        return None
    fits = feasible_utilization(float(free), total)
    if fits < _rounded(now.lowest_utilization) or fits >= now.utilization:
        return None
    return {
        "utilization": fits
    }, f"utilization {now.utilization:g} to {fits:g}: {free:g} of {total:g} GiB are free on this host"


def _raise_utilization(now: _Situation) -> _Proposal | None:
    """As much as the KV cache lacks, within the band that is known to serve."""
    total, needed = now.total_gib, now.numbers.get("needed_gib")
    if not total or now.times("utilization"):
        return None
    if needed is None:
        higher, lacks = _rounded(min(now.utilization + UTILIZATION_DROP, SAFE_UTILIZATION)), "room"
    else:
        short = float(needed) - float(now.numbers.get("available_gib") or 0.0)
        higher = sufficient_utilization(now.utilization, short, total)
        lacks = f"{short:.2f} GiB"
    if not now.utilization < higher <= SAFE_UTILIZATION:
        return None
    return {"utilization": higher}, f"utilization {now.utilization:g} to {higher:g}: the KV cache lacks {lacks}"


def _shorter_context(now: _Situation) -> _Proposal | None:
    """The length that the engine says would fit, never below the user's minimum."""
    fits = now.numbers.get("feasible_max_model_len")
    current = now.settings.max_model_len or now.numbers.get("max_model_len")
    if not fits or int(fits) < max(now.limits.min_context, 1) or (current and int(fits) >= int(current)):
        return None
    return {
        "max_model_len": int(fits)
    }, f"max_model_len {current or 'unset'} to {fits}: the longest that fits, as the engine says"


def _smaller_batches(now: _Situation) -> _Proposal | None:
    current = now.settings.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    least = max(LEAST_BATCHED_TOKENS, now.limits.min_batched_tokens)
    lower = max(current // 2, least)
    if lower >= current:
        return None
    return {
        "max_num_batched_tokens": lower
    }, f"max_num_batched_tokens {current} to {lower}: a smaller batch needs less memory at once"


def _fewer_sequences(now: _Situation) -> _Proposal | None:
    current = now.settings.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    lower = current // 2 if current <= 2 * FEW_CAPTURE_SIZES[-1] else FEW_CAPTURE_SIZES[-1]
    if lower < 1 or lower >= current:
        return None
    return {"max_num_seqs": lower}, f"max_num_seqs {current} to {lower}: less state and fewer graphs at the same time"


def _fewer_graphs(now: _Situation) -> _Proposal | None:
    if now.settings.enforce_eager:
        return None
    # Graphs larger than the number of sequences are not replayed in decoding.
    largest = min(now.settings.max_num_seqs or FEW_CAPTURE_SIZES[-1], FEW_CAPTURE_SIZES[-1])
    sizes = [size for size in FEW_CAPTURE_SIZES if size <= largest]
    known = now.settings.cudagraph_capture_sizes
    if known is not None and len(known) <= len(sizes):
        return None
    return {
        "cudagraph_capture_sizes": sizes
    }, f"graphs for {', '.join(map(str, sizes))} sequences only: each graph holds memory"


def _eager(now: _Situation) -> _Proposal | None:
    if now.settings.enforce_eager:
        return None
    return {
        "enforce_eager": True
    }, "no graphs at all (enforce_eager): the last resort, decoding gets about half as fast"


# Cause to its steps in order. A step that can propose nothing (more) is passed over.
_STEPS: Mapping[str, Sequence[tuple[str, Any]]] = {
    "ENGINE.FREE_MEMORY_SHORT": (("utilization", _fitting_utilization),),
    "ENGINE.KV_CACHE_TOO_SMALL": (
        ("utilization", _raise_utilization),
        ("context", _shorter_context),
        ("batch", _smaller_batches),
    ),
    "ENGINE.OOM_PROFILE": (
        ("batch", _smaller_batches),
        ("utilization", _lower_utilization),
        ("sequences", _fewer_sequences),
        ("eager", _eager),
    ),
    "ENGINE.OOM_KV_CACHE": (("utilization", _lower_utilization), ("sequences", _fewer_sequences)),
    "ENGINE.OOM_GRAPH_CAPTURE": (
        ("utilization", _graph_utilization),
        ("graphs", _fewer_graphs),
        ("sequences", _fewer_sequences),
        ("utilization", _graph_utilization),
        ("eager", _eager),
    ),
    "ENGINE.OOM_SERVING": (
        ("utilization", _lower_utilization),
        ("batch", _smaller_batches),
        ("sequences", _fewer_sequences),
        ("eager", _eager),
    ),
}
# A process that was killed for memory failed like one that ran out of it in the same phase. While weights are loaded no setting
# helps: then the memory is held by something else, or the model does not fit.
_KILLED = (
    "ENGINE.KILLED_BY_MEMGUARD",
    "ENGINE.KILLED_BY_KERNEL",
    "ENGINE.KILLED_BY_EARLYOOM",
    "ENGINE.DRIVER_OUT_OF_MEMORY",
)
_KILLED_IN_PHASE = {
    "profile": "ENGINE.OOM_PROFILE",
    "kv_cache": "ENGINE.OOM_KV_CACHE",
    "graph_capture": "ENGINE.OOM_GRAPH_CAPTURE",
    "serve": "ENGINE.OOM_SERVING",
}


def feasible_utilization(free_gib: float, total_gib: float) -> float:
    """The largest utilization with which an engine would start on this much free memory."""
    return max(0.0, _rounded(math.floor(round((free_gib - FREE_MARGIN_GIB) / total_gib / STEP, 6)) * STEP))


def sufficient_utilization(utilization: float, short_gib: float, total_gib: float) -> float:
    """The smallest utilization that gives the engine this much more."""
    return _rounded(math.ceil(round((utilization + short_gib / total_gib) / STEP, 6)) * STEP)


def next_rung(
    cause: str, phase: str, numbers: Mapping[str, Any], settings: EngineSettings, limits: LadderLimits
) -> Rung | None:
    """The next change after this failure; None if the cause is none of memory, or the ladder ends."""
    if len(limits.taken) >= MAX_RUNGS:
        return None
    kind = _KILLED_IN_PHASE.get(phase, "") if cause in _KILLED else cause
    now = _Situation(numbers, settings, limits)
    passed: dict[str, int] = {}
    for name, propose in _STEPS.get(kind, ()):
        passed[name] = passed.get(name, 0) + 1
        # Each step once for each time that it stands in the list.
        if now.times(name) >= passed[name]:
            continue
        proposal = propose(now)
        if proposal:
            return Rung(len(limits.taken) + 1, name, *proposal)
    return None


def limits_of(plan: Mapping[str, Any], settings: EngineSettings) -> LadderLimits:
    """From a plan of this collection, or from the options of a user by hand: min_context, taken, asked, total_gib."""
    memory, engine = plan.get("memory") or {}, plan.get("engine") or {}
    total = plan.get("total_gib") or memory.get("host_gib")
    granted, utilization = memory.get("granted_gib"), engine.get("utilization")
    if not total and granted and utilization:
        total = round(float(granted) / float(utilization), 2)
    needed = float(memory.get("weights_gib") or 0.0) + float(memory.get("overhead_gib") or 0.0)
    return LadderLimits(
        taken=tuple(plan.get("taken") or ()),
        asked=EngineSettings.of(plan.get("asked") or engine) if plan.get("asked") or engine else settings,
        min_context=int(plan.get("min_context") or engine.get("min_context") or 0),
        min_batched_tokens=int(plan.get("min_num_batched_tokens") or engine.get("min_num_batched_tokens") or 0),
        least_utilization=needed / float(total) if total else 0.0,
        total_gib=float(total) if total else None,
    )


def as_arguments(changes: Mapping[str, Any]) -> list[str]:
    """The changes as arguments of C(vllm serve); later arguments win over earlier ones."""
    arguments: list[str] = []
    flags = {
        "utilization": "--gpu-memory-utilization",
        "max_model_len": "--max-model-len",
        "max_num_seqs": "--max-num-seqs",
        "max_num_batched_tokens": "--max-num-batched-tokens",
    }
    for name, flag in flags.items():
        if changes.get(name) is not None:
            arguments += [flag, str(changes[name])]
    if changes.get("enforce_eager"):
        arguments.append("--enforce-eager")
    elif changes.get("cudagraph_capture_sizes"):
        sizes = ",".join(str(size) for size in changes["cudagraph_capture_sizes"])
        # The field of the compilation's configuration is older than a flag of its own.
        arguments += ["--compilation-config", f'{{"cudagraph_capture_sizes":[{sizes}]}}']
    return arguments


# What worked is remembered for one preset on one set of hosts with one image: another of them may need other values.


def learned_key(preset: str, hosts: Sequence[str], image_id: str) -> str:
    return "|".join([preset, ",".join(sorted(hosts)), image_id])


def remembered(known: Mapping[str, Any], key: str, asked: EngineSettings, rungs: Sequence[Rung]) -> dict[str, Any]:
    """The record with what finally worked. Without a rung nothing had to be learned, and an older entry goes."""
    record = {name: value for name, value in known.items() if name != key}
    if rungs:
        changes: dict[str, Any] = {}
        for rung in rungs:
            changes.update(rung.changes)
        record[key] = {
            "changes": changes,
            "asked": {name: value for name, value in asdict(asked).items() if value not in (None, False)},
            "rungs": [rung.as_dict() for rung in rungs],
        }
    return record


def recalled(known: Mapping[str, Any], key: str, asked: EngineSettings) -> dict[str, Any]:
    """Changes that worked before, or nothing: values that the user has changed since are the user's again."""
    entry = known.get(key) or {}
    before = EngineSettings.of(entry.get("asked") or {})
    same = before == asked
    return dict(entry.get("changes") or {}) if same else {}
