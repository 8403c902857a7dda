# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The results of gpu_memory_check in the form that it returns.

PRIVATE to this collection.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import Finding, describe
from ansible_collections.dgxspark.serving.plugins.module_utils._memory import GIB_DECIMALS, Gpu, Meminfo


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, GIB_DECIMALS)


def gpu_result(gpu: Gpu, meminfo: Meminfo) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "compute_capability": gpu.compute_capability,
        "memory_model": "unified" if gpu.unified else "dedicated",
        "total_gib": rounded(meminfo.total if gpu.unified else gpu.total_gib),
        "free_gib": rounded(meminfo.free if gpu.unified else gpu.free_gib),
        "used_gib": rounded(gpu.used_gib),
        "busy_percent": gpu.busy_percent,
        "mig": gpu.mig,
        "driver": gpu.driver,
    }


def memory_result(meminfo: Meminfo, min_free: float | None) -> dict[str, Any]:
    return {
        "total_gib": rounded(meminfo.total),
        "free_gib": rounded(meminfo.free),
        "available_gib": rounded(meminfo.available),
        "reclaimable_gib": rounded(meminfo.reclaimable),
        "unexplained_gib": rounded(meminfo.unexplained),
        "cma_total_gib": rounded(meminfo.get("CmaTotal")),
        "cma_free_gib": rounded(meminfo.get("CmaFree")),
        "shared_gib": rounded(meminfo.get("Shmem")),
        "min_free_gib": rounded(min_free),
        "swap_total_gib": rounded(meminfo.get("SwapTotal")),
        "swap_free_gib": rounded(meminfo.get("SwapFree")),
    }


def summary(report: dict[str, Any], findings: list[Finding]) -> str:
    lines = []
    for gpu in report["gpus"]:
        heading = f"GPU {gpu['index']} {gpu['name']}:"
        if gpu["memory_model"] == "unified":
            host = report["memory"]
            lines.append(
                f"{heading} {host['total_gib']:.2f} GiB shared with the host, "
                f"{host['available_gib']:.2f} available, {host['free_gib']:.2f} free"
            )
        elif gpu["total_gib"] is not None:
            lines.append(f"{heading} {gpu['total_gib']:.2f} GiB, {gpu['free_gib']:.2f} free")
        else:
            lines.append(f"{heading} memory unknown")
    for holder in report["holders"]:
        where = holder["systemd_unit"] or holder["container"] or holder["container_id"][:12] or "-"
        size = "?" if holder["used_gib"] is None else f"{holder['used_gib']:.2f}"
        lines.append(f"  {size:>7} GiB  {holder['pid']:>7}  {where}  {holder['user'] or '-'}  {holder['process']}")
    if report["max_utilization"] is not None:
        fits = {True: "yes", False: "no", None: "nothing asked for"}[report["fits"]]
        lines.append(f"fits: {fits}; largest utilization: {report['max_utilization']:.2f}")
    return "\n".join([*lines, describe(findings)]).strip()
