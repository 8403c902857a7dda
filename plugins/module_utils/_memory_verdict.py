# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Is there room, and is anything odd about the memory.

PRIVATE to this collection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._memory import Gpu, Meminfo
from ansible_collections.dgxspark.serving.plugins.module_utils._memory_holders import Holder

# Less page cache than this is not worth dropping: a Spark at rest keeps 1 to 2 GiB that do not go away (measured: 1.2).
PAGE_CACHE_WORTH_DROPPING_GIB = 2.0
# Memory of a host that nothing explains. Driver and firmware of a Spark at rest take about 2 GiB, a reported leak was
# 33 GiB; 8 GiB is ours, between the two.
LEAK_GIB = 8.0
# Memory of a GPU with its own memory that no listed process holds. An idle driver takes up to 0.6 GiB (H200: 616 MiB).
INVISIBLE_HOLDER_GIB = 1.0
# After a hard stop the driver gives memory back within this time, or only after a reboot (field reports).
RELEASE_SECONDS = 60
# More than this kept by the kernel is somebody's setting: reports of 6 GiB on a Spark, the kernel itself takes below 0.1.
MIN_FREE_GIB = 2.0
# CUDA graphs of several ranks deadlock with it (README of spark-vllm-docker); 580 and 595 do not.
_KNOWN_BAD_DRIVER = "590."


@dataclass(frozen=True)
class Demand:
    """What is asked for. required_gib and utilization are None when they are not."""

    required_gib: float | None
    reserve_gib: float
    utilization: float | None

    @property
    def anything(self) -> bool:
        return self.required_gib is not None or self.utilization is not None


@dataclass(frozen=True)
class Pool:
    """One pool of memory: that of a GPU, or that which host and GPU share.

    free: what cudaMemGetInfo reports as free, on which older versions of vLLM decide. available: what can be had, on
    which newer ones decide (psutil's available memory on a GPU that shares the memory of the host).
    """

    subject: str
    total: float
    free: float
    available: float

    @property
    def cache_is_worth_dropping(self) -> bool:
        return self.available - self.free > PAGE_CACHE_WORTH_DROPPING_GIB

    def max_utilization(self, reserve_gib: float) -> float:
        """The largest two digit C(--gpu-memory-utilization) that leaves the reserve, with much page cache dropped."""
        room = (self.available if self.cache_is_worth_dropping else self.free) - reserve_gib
        # 1e-9: 0.82 * total divided by total must not become 0.81.
        return max(math.floor(room / self.total * 100 + 1e-9) / 100, 0.0)

    def wanted(self, demand: Demand) -> float:
        """GiB that must be there at the start."""
        wanted = 0.0
        if demand.required_gib is not None:
            wanted = demand.required_gib + demand.reserve_gib
        if demand.utilization is not None:
            wanted = max(wanted, demand.utilization * self.total)
        return wanted

    def fits(self, demand: Demand) -> bool:
        """Whether it would start now: a utilization is compared with what older versions of vLLM see as well."""
        if self.wanted(demand) > self.available:
            return False
        return demand.utilization is None or demand.utilization * self.total <= self.free


def pools(gpus: list[Gpu], meminfo: Meminfo) -> list[Pool]:
    """The pools that an engine on this host would use."""
    found = [
        Pool(f"GPU {gpu.index}", gpu.total_gib, gpu.free_gib, gpu.free_gib)
        for gpu in gpus
        if not gpu.unified and gpu.total_gib is not None and gpu.free_gib is not None
    ]
    if any(gpu.unified for gpu in gpus):
        found.append(Pool("unified memory", meminfo.total, meminfo.free, meminfo.available))
    return found


def unattributed(gpus: list[Gpu], meminfo: Meminfo, holders: list[Holder]) -> dict[str, float]:
    """GiB per pool that are used and that no listed process explains."""
    result = {}
    for gpu in gpus:
        if gpu.unified or gpu.used_gib is None:
            continue
        held = sum(holder.used_gib or 0.0 for holder in holders if gpu.index in holder.gpus)
        result[f"GPU {gpu.index}"] = max(gpu.used_gib - held, 0.0)
    if any(gpu.unified for gpu in gpus) and meminfo.unexplained is not None:
        held = sum(holder.used_gib or 0.0 for holder in holders)
        result["unified memory"] = max(meminfo.unexplained - held, 0.0)
    return result


def judge_demand(pool: Pool, demand: Demand, holders: list[Holder]) -> list[Finding]:
    """What stands in the way of what is asked for."""
    if not demand.anything:
        return []
    wanted = pool.wanted(demand)
    asked = f"{wanted:.2f} GiB" + (
        f" (utilization {demand.utilization:g} of {pool.total:.2f} GiB)"
        if demand.utilization is not None and wanted == demand.utilization * pool.total
        else f" ({demand.required_gib:g} required, {demand.reserve_gib:g} in reserve)"
    )
    if wanted > pool.available:
        return [
            Finding(
                "MEMORY.DOES_NOT_FIT",
                ERROR,
                pool.subject,
                f"{asked} are asked for, {pool.available:.2f} GiB are available: "
                f"{wanted - pool.available:.2f} GiB are missing.",
                _way_to_room(pool, demand, holders),
                f"available {pool.available:.2f} GiB, free {pool.free:.2f} GiB, total {pool.total:.2f} GiB",
            )
        ]
    if pool.fits(demand):
        return []
    return [
        Finding(
            "MEMORY.PAGE_CACHE",
            WARNING,
            pool.subject,
            f"{asked} are asked for and {pool.available:.2f} GiB are available, but only {pool.free:.2f} GiB "
            f"are free: {pool.available - pool.free:.2f} GiB are page cache, used in the eyes of CUDA and of older versions of vLLM.",
            "Drop the page cache right before the start (drop_caches=true). No process needs to be stopped."
            if pool.cache_is_worth_dropping
            else f"Use a utilization of at most {pool.max_utilization(demand.reserve_gib):.2f}.",
            f"available {pool.available:.2f} GiB, free {pool.free:.2f} GiB, total {pool.total:.2f} GiB",
        )
    ]


def _way_to_room(pool: Pool, demand: Demand, holders: list[Holder]) -> str:
    large = [holder for holder in holders if (holder.used_gib or 0.0) >= INVISIBLE_HOLDER_GIB and not holder.graphics]
    if large:
        listed = ", ".join(f"{holder.owner} ({holder.used_gib:.1f} GiB)" for holder in large)
        return f"Make room: {listed}."
    if demand.utilization is not None:
        return f"No process holds it. Use a utilization of at most {pool.max_utilization(demand.reserve_gib):.2f}."
    return "No process holds it: this host has not more to give. Ask for less."


def judge_state(
    gpus: list[Gpu], meminfo: Meminfo, holders: list[Holder], waited: float, all_visible: bool
) -> list[Finding]:
    """What is odd about the memory, whatever is asked for."""
    findings = [_unreadable(gpu) for gpu in gpus if gpu.failure]
    findings += [_orphan(holder) for holder in holders if holder.orphan]
    findings += [_invisible_process(holder) for holder in holders if not holder.visible]
    if meminfo.broken_cma:
        findings.append(_broken_cma(meminfo))
    findings += [
        Finding(
            "MEMORY.MIG",
            INFO,
            f"GPU {gpu.index}",
            "The GPU is divided (MIG): the figures are those of the whole GPU, an engine gets one instance.",
        )
        for gpu in gpus
        if gpu.mig
    ]
    missing = unattributed(gpus, meminfo, holders)
    for gpu in gpus:
        if missing.get(f"GPU {gpu.index}", 0.0) > INVISIBLE_HOLDER_GIB:
            findings.append(_invisible_holder(gpu, missing[f"GPU {gpu.index}"]))
    gap = missing.get("unified memory", 0.0)
    if gap > LEAK_GIB:
        findings.append(_leak(gap, waited) if all_visible else _hidden_from_container(gap))
    return findings


def judge_settings(gpus: list[Gpu], min_free: float | None) -> list[Finding]:
    """What is set or installed on the host and is known to hurt."""
    findings = [
        Finding(
            "MEMORY.DRIVER_KNOWN_BAD",
            WARNING,
            f"GPU {gpu.index}",
            f"Driver {gpu.driver} is known for deadlocks when CUDA graphs are captured on several hosts.",
            "Install a driver of branch 580 or 595, or start the engine with --enforce-eager (about half the speed).",
            gpu.driver,
        )
        for gpu in gpus
        if gpu.driver.startswith(_KNOWN_BAD_DRIVER)
    ]
    if min_free is not None and min_free > MIN_FREE_GIB and any(gpu.unified for gpu in gpus):
        findings.append(
            Finding(
                "MEMORY.MIN_FREE_LARGE",
                WARNING,
                "kernel",
                f"vm.min_free_kbytes keeps {min_free:.1f} GiB for the kernel: so much less is available to the engine.",
                "Lower it (sudo sysctl vm.min_free_kbytes=1048576), or count it in spark_utilization.",
            )
        )
    return findings


def _unreadable(gpu: Gpu) -> Finding:
    return Finding(
        "MEMORY.GPU_UNREADABLE",
        ERROR,
        f"GPU {gpu.index}",
        f"The driver cannot read the memory of this GPU ({gpu.failure}).",
        "Look for Xid messages in the kernel's log (journalctl -k -g Xid); reboot the host.",
        gpu.failure,
    )


def _orphan(holder: Holder) -> Finding:
    return Finding(
        "MEMORY.ORPHAN_ENGINE",
        WARNING,
        f"process {holder.pid}",
        f"{holder.process} of {holder.user} is what remains of an engine whose server is gone; "
        f"it holds {holder.used_gib or 0:.1f} GiB.",
        f"End it by its number: kill {holder.pid}, and kill -9 {holder.pid} if it is still there 30 s later.",
        f"pid {holder.pid} {holder.process}",
    )


def _invisible_process(holder: Holder) -> Finding:
    return Finding(
        "MEMORY.HOLDER_INVISIBLE",
        WARNING,
        f"process {holder.pid}",
        f"nvidia-smi lists process {holder.pid} ({holder.process or 'no name'}), which this host does not show: "
        "it belongs to another PID namespace, has just ended, or is hidden from this user (hidepid).",
        "Look from the host itself, not from a container, and as root (become).",
    )


def _invisible_holder(gpu: Gpu, gap: float) -> Finding:
    if gpu.busy_percent:
        certainty = f" It is at work ({gpu.busy_percent}% busy), so a live process holds it: this is not a leak."
    else:
        certainty = " Who holds it cannot be seen from here."
    return Finding(
        "MEMORY.HOLDER_INVISIBLE",
        WARNING,
        f"GPU {gpu.index}",
        f"{gap:.1f} GiB are in use, but nvidia-smi lists no process for them.{certainty}",
        "Look from the host itself, not from a container: nvidia-smi and, as root, fuser -v /dev/nvidia*.",
    )


def _hidden_from_container(gap: float) -> Finding:
    return Finding(
        "MEMORY.HOLDER_INVISIBLE",
        WARNING,
        "unified memory",
        f"{gap:.1f} GiB are in use and unexplained, but not all processes can be seen from here "
        "(PID namespace of a container).",
        "Look from the host itself, not from a container.",
    )


def _leak(gap: float, waited: float) -> Finding:
    waited_enough = waited >= RELEASE_SECONDS
    return Finding(
        "MEMORY.LEAKED",
        WARNING,
        "unified memory",
        f"{gap:.1f} GiB are in use and belong to no process, page cache or kernel structure: "
        "the driver has not given them back" + (f", {waited:.0f} s after the first look." if waited_enough else "."),
        "Reboot this host: nothing else is known to bring it back."
        if waited_enough
        else f"Measure again after {RELEASE_SECONDS} s. If it stays, reboot this host. There is no process to stop.",
        "MemTotal - MemFree - (Buffers + Cached + AnonPages + Slab + KernelStack + PageTables) "
        f"= {gap:.1f} GiB beside the listed processes",
    )


def _broken_cma(meminfo: Meminfo) -> Finding:
    return Finding(
        "MEMORY.CMA_ACCOUNTING",
        WARNING,
        "kernel",
        "The kernel counts more contiguous memory free than it has, as kernels 7.0 with KHO do. NCCL then fails to "
        "register memory (ibv_reg_mr: Cannot allocate memory) and up to 26 GiB are missing.",
        "Boot with kho=off on the kernel's command line, or boot a 6.17 kernel.",
        f"CmaFree {meminfo.fields['CmaFree']:.2f} GiB > CmaTotal {meminfo.fields['CmaTotal']:.2f} GiB",
    )
