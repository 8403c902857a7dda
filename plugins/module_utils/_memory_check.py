# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One look at a host's GPU memory: what there is, who holds it, and whether what is asked for would fit.

PRIVATE to this collection. Module gpu_memory_check is this look alone; module host_survey has it among others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _host_python as host_python
from ansible_collections.dgxspark.serving.plugins.module_utils import _memory as memory
from ansible_collections.dgxspark.serving.plugins.module_utils import _memory_report as report
from ansible_collections.dgxspark.serving.plugins.module_utils import _memory_verdict as verdict
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import (
    INFO,
    Finding,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._gpu_query import NVIDIA_SMI, look_at_gpus
from ansible_collections.dgxspark.serving.plugins.module_utils._host_kernel import read_text
from ansible_collections.dgxspark.serving.plugins.module_utils._memory_holders import (
    Container,
    Holder,
    find_holders,
    name_containers,
    sees_all_processes,
)

POLL_SECONDS = 1.0
# Memory counts as settled when it stays within this range for so many looks. Ours: a Spark at rest moves by less.
SETTLED_GIB = 0.1
SETTLED_LOOKS = 3


class MemoryCheckError(Exception):
    """The memory cannot be looked at; the message says what and why."""


def memory_arguments() -> dict[str, Any]:
    """The options of the look, as an argument spec."""
    return {
        "required_gib": {"type": "float"},
        "reserve_gib": {"type": "float", "default": 0.0},
        "utilization": {"type": "float"},
        "drop_caches": {"type": "bool", "default": False},
        "settle_seconds": {"type": "float", "default": 0.0},
        "nvidia_smi": {"type": "str", "default": "nvidia-smi"},
        "timeout": {"type": "float", "default": 30.0},
        "proc_root": {"type": "path", "default": "/proc"},
        **host_python.docker_argument_spec(),
    }


@dataclass(frozen=True)
class Snapshot:
    """What one look at the host gave."""

    meminfo: memory.Meminfo
    gpus: list[memory.Gpu]
    holders: list[Holder]
    findings: list[Finding]
    source: str


class MemoryCheck:
    """params: the options that memory_arguments() names."""

    def __init__(self, params: Mapping[str, Any], check_mode: bool = False) -> None:
        self.params, self.check_mode = params, check_mode
        self.nvidia_smi = shutil.which(self.params["nvidia_smi"]) or ""
        self.demand = verdict.Demand(
            self.params["required_gib"], self.params["reserve_gib"], self.params["utilization"]
        )

    def run(self) -> dict[str, Any]:
        """What module gpu_memory_check returns, with the findings as they are. Raises MemoryCheckError."""
        changed = False
        if self.params["drop_caches"]:
            changed = True
            self._drop_caches()
        snapshot, waited = self._settle()
        snapshot = self._with_container_names(snapshot)
        return {"changed": changed, **self._report(snapshot, waited)}

    def _drop_caches(self) -> None:
        if self.check_mode:
            return
        path = f"{self.params['proc_root']}/sys/vm/drop_caches"
        os.sync()
        try:
            with open(path, "w", encoding="ascii") as handle:
                handle.write("3\n")
        except OSError as error:
            raise MemoryCheckError(
                f"Cannot drop the page cache: {path}: {error.strerror}. Use become (ansible -b)."
            ) from error

    def _read_meminfo(self) -> memory.Meminfo:
        path = f"{self.params['proc_root']}/meminfo"
        try:
            with open(path, encoding="ascii") as handle:
                return memory.parse_meminfo(handle.read())
        except (OSError, ValueError) as error:
            raise MemoryCheckError(f"Cannot read the memory of this host from {path}: {error}") from error

    def _min_free(self) -> float | None:
        text = read_text(f"{self.params['proc_root']}/sys/vm/min_free_kbytes").strip()
        return int(text) / memory.KIB_PER_GIB if text.isdigit() else None

    def _look(self) -> Snapshot:
        meminfo = self._read_meminfo()
        look = look_at_gpus(
            self.nvidia_smi, self.params["nvidia_smi"], self.params["timeout"], self.params["nvidia_smi"] == NVIDIA_SMI
        )
        holders = find_holders(look.processes, self.params["proc_root"])
        return Snapshot(meminfo, look.gpus, holders, look.findings, look.source)

    def _settle(self) -> tuple[Snapshot, float]:
        """The last look, and how long it took until there was no reason to wait longer."""
        began = monotonic()
        deadline = began + self.params["settle_seconds"]
        history: list[float] = []
        while True:
            snapshot = self._look()
            now = monotonic()
            pools = verdict.pools(snapshot.gpus, snapshot.meminfo)
            history.append(sum(pool.available for pool in pools))
            if self.demand.anything:
                done = all(pool.fits(self.demand) for pool in pools)
            else:
                recent = history[-SETTLED_LOOKS:]
                done = len(recent) == SETTLED_LOOKS and max(recent) - min(recent) < SETTLED_GIB
            if done or not pools or now + POLL_SECONDS > deadline:
                return snapshot, round(now - began, 1)
            sleep(POLL_SECONDS)

    def _with_container_names(self, snapshot: Snapshot) -> Snapshot:
        if not any(holder.container_id for holder in snapshot.holders):
            return snapshot
        reason = "the Docker SDK for Python is missing on this host (role host_setup brings it)"
        if not host_python.import_error("docker"):
            try:
                client = host_python.connect_engine(self.params["docker_host"])
                holders = name_containers(
                    snapshot.holders, lambda identity: _inspect(client, identity), self.params["proc_root"]
                )
                return replace(snapshot, holders=holders)
            except host_python.EngineUnavailable as error:
                reason = str(error)
        unnamed = Finding(
            "MEMORY.CONTAINER_NAMES_UNKNOWN", INFO, "holders", f"Containers are reported without their names: {reason}"
        )
        return replace(snapshot, findings=[*snapshot.findings, unnamed])

    def _report(self, snapshot: Snapshot, waited: float) -> dict[str, Any]:
        meminfo, gpus, holders = snapshot.meminfo, snapshot.gpus, snapshot.holders
        pools = verdict.pools(gpus, meminfo)
        findings = list(snapshot.findings)
        for pool in pools:
            findings += verdict.judge_demand(pool, self.demand, holders)
        findings += verdict.judge_state(gpus, meminfo, holders, waited, sees_all_processes(self.params["proc_root"]))
        findings += verdict.judge_settings(gpus, self._min_free())
        fits = all(pool.fits(self.demand) for pool in pools) if pools and self.demand.anything else None
        utilizations = [pool.max_utilization(self.demand.reserve_gib) for pool in pools]
        missing = verdict.unattributed(gpus, meminfo, holders)
        results = {
            "gpus": [report.gpu_result(gpu, meminfo) for gpu in gpus],
            "memory": report.memory_result(meminfo, self._min_free()),
            "holders": [holder.as_dict() for holder in holders],
            "unattributed_gib": report.rounded(sum(missing.values())) if missing else None,
            "max_utilization": min(utilizations) if utilizations else None,
            "fits": fits,
            "source": snapshot.source,
            "waited_seconds": waited,
            "findings": findings,
        }
        return {**results, "msg": report.summary(results, findings)}


def _inspect(client: Any, identity: str) -> Container | None:
    return Container.from_inspection(host_python.look_up(client.inspect_container, identity))
