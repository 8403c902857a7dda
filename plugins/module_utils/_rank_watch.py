# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How far is a rank, and is it still moving? From snapshots (see _rank_snapshot) to a verdict.

PRIVATE to this collection. Knows nothing of Ansible and has no clock: the caller says what time it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WAITING, READY, FAILED = "waiting", "ready", "failed"
# Lines of the log that a failure shows.
TAIL_LINES = 15

# Phases of an engine's start in their order, with the line that shows each. vLLM 0.14 to 0.32 and SGLang 0.5 print these words.
ENGINE_PHASES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "starting",
        re.compile(r"vLLM API server version|Initializing a V1 LLM engine|non-default args|server_args=ServerArgs"),
    ),
    ("placing ranks", re.compile(r"placement group|RayWorkerProc|world_size=\d+ rank=\d+")),
    (
        "connecting ranks",
        re.compile(r"rank \d+ in world size \d+|NCCL version|backend=(?:nccl|gloo)|Init torch distributed"),
    ),
    (
        "loading weights",
        re.compile(r"Loading (?:safetensors )?(?:checkpoint shards|weights)|Starting to load model|Load weight begin"),
    ),
    ("profiling memory", re.compile(r"Model loading took|Loading weights took|Memory profiling|Load weight end")),
    ("compiling", re.compile(r"torch\.compile|Compiling a graph|Dynamo bytecode|Using cache directory")),
    (
        "sizing the KV cache",
        re.compile(
            r"GPU KV cache size|CPU KV cache size|KV cache size|# GPU blocks|KV Cache is allocated|Memory pool end"
        ),
    ),
    ("capturing graphs", re.compile(r"Capturing CUDA graph|Graph capturing|Capture cuda graph begin")),
    (
        "starting the API",
        re.compile(r"Starting vLLM API server|Application startup complete|init engine .* took|Uvicorn running on"),
    ),
)
_SHARDS = re.compile(r"checkpoint shards:.*?\|\s*(\d+)/(\d+)")
# Lines that come again and again without anything moving: they are not progress.
NO_PROGRESS = re.compile(
    r"No available shared memory broadcast block|Waiting for|Timed out while waiting|is still waiting|Retrying|heartbeat|"
    r"Failed to connect to GCS|Unable to connect|GET /health"
)


def engine_phase(lines: Sequence[str], known: str = "") -> str:
    """The furthest phase that the lines show, not before C(known); shards of the weights are counted."""
    names = [name for name, _pattern in ENGINE_PHASES]
    furthest = names.index(known.split(" (")[0]) if known.split(" (")[0] in names else -1
    detail = known if furthest >= 0 else ""
    for line in lines:
        for number, (name, pattern) in enumerate(ENGINE_PHASES):
            if number >= furthest and pattern.search(line):
                if number > furthest:
                    furthest, detail = number, name
                shards = _SHARDS.search(line)
                if shards and name == "loading weights":
                    detail = f"{name} ({shards.group(1)}/{shards.group(2)})"
    return detail


@dataclass
class RankWatch:
    """What the snapshots of one rank have shown so far.

    started: when the wait began; progress_limit and total_limit: seconds. All times are seconds of the caller's clock.
    """

    started: float
    progress_limit: float
    total_limit: float
    phase: str = ""
    last_progress: float = 0.0
    tail: list[str] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    history: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last_progress = self.last_progress or self.started

    def enter(self, phase: str, now: float) -> None:
        if phase and phase != self.phase:
            self.phase = phase
            self.last_progress = now
            self.history.append((phase, round(now - self.started, 1)))

    def take_lines(self, lines: Sequence[str], now: float) -> None:
        if any(not NO_PROGRESS.search(line) for line in lines):
            self.last_progress = now
        self.tail = [*self.tail, *lines][-TAIL_LINES:]

    def units_failed(self, units: Sequence[Mapping[str, Any]], restarts_allowed: bool = False) -> str:
        """Why a unit of this rank counts as failed, or an empty string.

        A restart by systemd is a failure of what ran before, but for a worker's Ray that waits for its head (restarts_allowed).
        """
        for unit in units:
            name, before = str(unit["name"]), self.restarts.setdefault(str(unit["name"]), int(unit["restarts"]))
            if unit["active"] in ("failed", "inactive", "deactivating"):
                return f"{name} is {unit['active']} ({unit['result']})"
            if restarts_allowed:
                continue
            if int(unit["restarts"]) > before or unit["sub"] == "auto-restart":
                # A unit knows exit codes that count as success (Ray's): that word would mislead here.
                result = f" ({unit['result']})" if unit["result"] != "success" else ""
                return f"{name} ended{result} and was started again by systemd"
        return ""

    def overdue(self, now: float) -> str:
        """Why the wait is over, or an empty string."""
        if now - self.started > self.total_limit:
            return f"not ready after {self.total_limit:.0f} s (hard limit)"
        if now - self.last_progress > self.progress_limit:
            return f"no progress for {self.progress_limit:.0f} s"
        return ""


def ray_verdict(answer: Mapping[str, Any] | None, expected: Mapping[str, int]) -> tuple[str, str]:
    """(state, explanation) of Ray's nodes against C(expected), address to number of GPUs."""
    if answer is None:
        return WAITING, "Ray on the head does not answer yet"
    alive = [node for node in answer["nodes"] if node["alive"]]
    addresses = [str(node["address"]) for node in alive]
    strangers = sorted(set(addresses) - set(expected))
    doubled = sorted({address for address in addresses if addresses.count(address) > 1})
    missing = sorted(set(expected) - set(addresses))
    if strangers:
        return (
            FAILED,
            f"Ray has node(s) at {', '.join(strangers)}, which are not in the plan ({', '.join(sorted(expected))}): "
            "a node announces a wrong address, or a foreign Ray has joined",
        )
    if doubled:
        return FAILED, f"two Ray runtimes run at {', '.join(doubled)}: stop the one that is not ours"
    if missing:
        return WAITING, f"{len(alive)} of {len(expected)} Ray nodes have joined, missing: {', '.join(missing)}"
    wrong = [
        f"{node['address']} has {int(node['gpus'])} GPU(s) in Ray, expected {expected[str(node['address'])]}"
        for node in alive
        if int(node["gpus"]) != expected[str(node["address"])]
    ]
    if wrong:
        return FAILED, "; ".join(wrong) + ": Ray does not see the GPU in the container"
    return READY, f"{len(alive)} Ray nodes, {sum(expected.values())} GPU(s), Ray {answer['version']}"
