# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The GPUs of a host and the processes with memory on them: from NVML where its bindings are there, else from nvidia-smi.

PRIVATE to this collection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ansible_collections.dgxspark.serving.plugins.module_utils import _memory as memory
from ansible_collections.dgxspark.serving.plugins.module_utils import _nvml as nvml
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._tool import ToolResult, run_tool

NVML, NVIDIA_SMI = "nvml", "nvidia-smi"


@dataclass(frozen=True)
class GpuLook:
    """What one look gave. source: V(nvml), V(nvidia-smi) or empty when neither could be asked."""

    gpus: list[memory.Gpu] = field(default_factory=list)
    processes: list[memory.GpuProcess] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    source: str = ""


def look_at_gpus(nvidia_smi: str, wanted_name: str, timeout: float, ask_nvml: bool) -> GpuLook:
    """C(nvidia_smi): its path, or empty when there is none; C(wanted_name): what was looked for."""
    if ask_nvml:
        try:
            answer = nvml.in_time(nvml.read_nvml, timeout)
            return GpuLook(nvml.gpus_of(answer), nvml.processes_of(answer), source=NVML)
        except nvml.NvmlHangs:
            return GpuLook(findings=[_hangs("NVML", timeout)], source=NVML)
        except nvml.NvmlUnavailable:
            # Not needed, and nvidia-smi has the words for what is wrong.
            pass
    if not nvidia_smi:
        return GpuLook(findings=[_missing(wanted_name)])
    return _ask_nvidia_smi(nvidia_smi, timeout)


def _ask_nvidia_smi(nvidia_smi: str, timeout: float) -> GpuLook:
    answer = run_tool(memory.query_gpus(nvidia_smi), timeout)
    if answer.timed_out:
        return GpuLook(findings=[_hangs("nvidia-smi", timeout)], source=NVIDIA_SMI)
    table = run_tool([nvidia_smi], timeout)
    gpus = memory.parse_gpus(answer.stdout) or memory.parse_table_gpus(table.stdout)
    if not gpus:
        failure = _hangs("nvidia-smi", timeout) if table.timed_out else _unavailable(answer)
        return GpuLook(findings=[failure], source=NVIDIA_SMI)
    listed = run_tool(memory.query_processes(nvidia_smi), timeout)
    processes = memory.merge_processes(
        memory.parse_processes(listed.stdout), memory.parse_table_processes(table.stdout), gpus
    )
    findings = [_hangs("nvidia-smi", timeout) for result in (table, listed) if result.timed_out]
    return GpuLook(gpus, processes, findings, NVIDIA_SMI)


def _hangs(who: str, timeout: float) -> Finding:
    return Finding(
        "MEMORY.NVIDIA_SMI_HANGS",
        ERROR,
        "driver",
        f"{who} did not answer within {timeout:g} s: the driver hangs.",
        "Look for Xid messages in the kernel's log (journalctl -k -g Xid); reboot the host.",
    )


def _unavailable(answer: ToolResult) -> Finding:
    return Finding(
        "MEMORY.DRIVER_UNAVAILABLE",
        ERROR,
        "driver",
        f"nvidia-smi cannot read the GPUs: {answer.complaint}",
        "Load the NVIDIA driver, or install the one that belongs to the running kernel. If a GPU is lost, reboot the host.",
        answer.complaint,
    )


def _missing(name: str) -> Finding:
    return Finding(
        "MEMORY.NVIDIA_SMI_MISSING",
        ERROR,
        "driver",
        f"There is no {name} on this host: its GPUs cannot be read.",
        "Install the NVIDIA driver's utilities, or set nvidia_smi to the path of the program.",
    )
