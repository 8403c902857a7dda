# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What nvidia-smi and /proc/meminfo say about memory.

PRIVATE to this collection. Parsers of text only; nothing is run here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

KIB_PER_GIB = 1024**2
MIB_PER_GIB = 1024
# Results are exact to the MiB, as nvidia-smi prints it: 1 MiB is 0.00098 GiB.
GIB_DECIMALS = 3

# GPUs that have no memory of their own. The list of vLLM, vllm/utils/mem_utils.py (Orin, Thor, GB10).
UNIFIED_COMPUTE_CAPABILITIES = ("8.7", "11.0", "12.1")
# For drivers that do not report the compute capability.
_UNIFIED_NAMES = re.compile(r"\bGB10\b|\bOrin\b|\bThor\b")
# What nvidia-smi prints where NVML has no number.
_NO_NUMBER = re.compile(
    r"\[?(?:N/A|Not Supported|Not Found|Unknown Error|GPU is lost|Insufficient Permissions)\]?", re.I
)
_GPU_FAILURES = re.compile(r"\[?(?:Unknown Error|GPU is lost)\]?", re.I)

GPU_FIELDS = (
    "index",
    "uuid",
    "name",
    "compute_cap",
    "memory.total",
    "memory.used",
    "memory.free",
    "utilization.gpu",
    "mig.mode.current",
    "driver_version",
)
# The name last: it may contain commas, and nvidia-smi does not quote.
PROCESS_FIELDS = ("pid", "gpu_uuid", "used_gpu_memory", "process_name")


def query_gpus(nvidia_smi: str) -> list[str]:
    return [nvidia_smi, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv"]


def query_processes(nvidia_smi: str) -> list[str]:
    return [nvidia_smi, f"--query-compute-apps={','.join(PROCESS_FIELDS)}", "--format=csv"]


@dataclass(frozen=True)
class Gpu:
    """One GPU. Sizes in GiB; None where the driver gives none. failure: what the driver said instead of a size."""

    index: int
    uuid: str
    name: str
    compute_capability: str
    total_gib: float | None
    used_gib: float | None
    free_gib: float | None
    busy_percent: int | None = None
    mig: bool = False
    driver: str = ""
    failure: str = ""

    @property
    def unified(self) -> bool:
        """Whether the GPU shares the memory of the host."""
        if self.compute_capability:
            return self.compute_capability in UNIFIED_COMPUTE_CAPABILITIES
        return bool(_UNIFIED_NAMES.search(self.name))


@dataclass(frozen=True)
class GpuProcess:
    """A process that nvidia-smi lists. gpu: uuid, or the index in digits; graphics: it draws."""

    pid: int
    name: str
    used_gib: float | None
    gpu: str = ""
    graphics: bool = False


@dataclass(frozen=True)
class Meminfo:
    """C(/proc/meminfo), in GiB."""

    fields: dict[str, float] = field(default_factory=dict)

    def get(self, name: str) -> float | None:
        return self.fields.get(name)

    @property
    def total(self) -> float:
        return self.fields["MemTotal"]

    @property
    def free(self) -> float:
        return self.fields["MemFree"]

    @property
    def available(self) -> float:
        return self.fields["MemAvailable"]

    @property
    def reclaimable(self) -> float:
        """What dropping the page cache would bring: the kernel counts it as available, CUDA as used."""
        return max(self.available - self.free, 0.0)

    @property
    def unexplained(self) -> float | None:
        """What is used by neither processes, page cache nor kernel: the driver, and what GPU programs hold.

        None when the kernel does not report the parts.
        """
        if any(name not in self.fields for name in ("Buffers", "Cached", "AnonPages", "Slab")):
            return None
        parts = (
            "Buffers",
            "Cached",
            "SwapCached",
            "AnonPages",
            "Slab",
            "KernelStack",
            "PageTables",
            "Percpu",
            "Hugetlb",
        )
        return max(self.total - self.free - sum(self.fields.get(name, 0.0) for name in parts), 0.0)

    @property
    def broken_cma(self) -> bool:
        """More contiguous memory free than there is: the accounting error of kernels with KHO (7.0)."""
        free, total = self.get("CmaFree"), self.get("CmaTotal")
        return free is not None and total is not None and free > total


def parse_meminfo(text: str) -> Meminfo:
    """Raises ValueError when it is not the text of C(/proc/meminfo)."""
    fields = {}
    for line in text.splitlines():
        found = re.match(r"(\S+):\s+(\d+) kB\s*$", line)
        if found:
            fields[found.group(1)] = int(found.group(2)) / KIB_PER_GIB
    missing = [name for name in ("MemTotal", "MemFree", "MemAvailable") if name not in fields]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing in meminfo")
    return Meminfo(fields)


def parse_size(text: str) -> float | None:
    """GiB of C(20998 MiB) or of a bare C(20998), which is MiB; None for [N/A], [Not Supported] and their like."""
    found = re.fullmatch(r"(\d+)(?:\s*MiB)?", text.strip())
    return int(found.group(1)) / MIB_PER_GIB if found else None


def _field(text: str) -> str:
    return "" if _NO_NUMBER.fullmatch(text.strip()) else text.strip()


def parse_csv(text: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of an answer to C(--query-...), as printed.

    Whatever stands before the header is skipped: images print banners.
    """
    rows: list[dict[str, str]] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", len(fields) - 1)]
        if rows is None:
            if [cell.split(" [")[0] for cell in cells] == list(fields):
                rows = []
        elif len(cells) == len(fields):
            rows.append(dict(zip(fields, cells, strict=True)))
    return rows or []


def parse_gpus(text: str) -> list[Gpu]:
    """The answer to C(query_gpus)."""
    gpus = []
    for row in parse_csv(text, GPU_FIELDS):
        busy = re.match(r"\d+", row["utilization.gpu"])
        gpus.append(
            Gpu(
                index=int(row["index"]),
                uuid=_field(row["uuid"]),
                name=row["name"],
                compute_capability=_field(row["compute_cap"]),
                total_gib=parse_size(row["memory.total"]),
                used_gib=parse_size(row["memory.used"]),
                free_gib=parse_size(row["memory.free"]),
                busy_percent=int(busy.group()) if busy else None,
                mig=row["mig.mode.current"] == "Enabled",
                driver=_field(row["driver_version"]),
                failure=row["memory.total"] if _GPU_FAILURES.fullmatch(row["memory.total"]) else "",
            )
        )
    return gpus


def parse_processes(text: str) -> list[GpuProcess]:
    """The answer to C(query_processes)."""
    return [
        GpuProcess(int(row["pid"]), _field(row["process_name"]), parse_size(row["used_gpu_memory"]), row["gpu_uuid"])
        for row in parse_csv(text, PROCESS_FIELDS)
        if row["pid"].isdigit()
    ]


_TABLE_NAME = re.compile(r"\|\s+(?P<index>\d+)\s+(?P<name>\S.*?)\s+(?:On|Off)\s+\|\s+(?P<bus>[0-9A-Fa-f]{8}:\S+)")
_TABLE_MEMORY = re.compile(
    r"\|[^|]*\|\s*(?:(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB|Not Supported|N/A|Unknown Error)[^|]*"
    r"\|\s*(?P<busy>\d+%|N/A)"
)
_TABLE_PROCESS = re.compile(
    r"\|\s+(?P<gpu>\d+)\s+(?:N/A|\d+)\s+(?:N/A|\d+)\s+(?P<pid>\d+)\s+(?P<type>[CGM+]+)\s+(?P<name>\S.*?)\s+(?P<used>\d+MiB|N/A)\s+\|"
)


def parse_table_gpus(text: str) -> list[Gpu]:
    """The GPUs of the table of a plain C(nvidia-smi), for drivers that do not know all the fields that are queried."""
    driver = re.search(r"Driver Version:\s*(\S+)", text)
    gpus: list[Gpu] = []
    for line in text.splitlines():
        heading = _TABLE_NAME.match(line)
        if heading:
            gpus.append(
                Gpu(
                    int(heading["index"]), "", heading["name"], "", None, None, None, driver=driver[1] if driver else ""
                )
            )
            continue
        sizes = _TABLE_MEMORY.match(line)
        if sizes and gpus:
            gpus[-1] = _with_sizes(gpus[-1], sizes)
    return gpus


def _with_sizes(gpu: Gpu, sizes: re.Match[str]) -> Gpu:
    busy = int(sizes["busy"][:-1]) if sizes["busy"] != "N/A" else None
    if sizes["total"] is None:
        return replace(gpu, busy_percent=busy)
    used, total = int(sizes["used"]) / MIB_PER_GIB, int(sizes["total"]) / MIB_PER_GIB
    return replace(gpu, busy_percent=busy, total_gib=total, used_gib=used, free_gib=total - used)


def parse_table_processes(text: str) -> list[GpuProcess]:
    """The processes of the table, the only place where nvidia-smi lists programs that draw. Long names are cut."""
    processes = []
    for line in text.splitlines():
        found = _TABLE_PROCESS.match(line)
        if found:
            processes.append(
                GpuProcess(
                    int(found["pid"]),
                    found["name"],
                    parse_size(found["used"]),
                    found["gpu"],
                    graphics="G" in found["type"],
                )
            )
    return processes


def merge_processes(queried: list[GpuProcess], shown: list[GpuProcess], gpus: list[Gpu]) -> list[GpuProcess]:
    """One list from the query and from the table: the query has whole names, the table has the programs that draw."""
    index_of = {gpu.uuid: str(gpu.index) for gpu in gpus}
    merged = {}
    for process in queried:
        gpu = index_of.get(process.gpu, process.gpu)
        merged[process.pid, gpu] = replace(process, gpu=gpu)
    for process in shown:
        known = merged.get((process.pid, process.gpu))
        merged[process.pid, process.gpu] = replace(known, graphics=process.graphics) if known else process
    return list(merged.values())
