"""The memory figures of a host whose CPU and GPU share one pool of about 120 GiB."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_processes import SEEN_FILE, Holder, as_json, scan

# `free` of a Spark with a desktop session and nothing else (forum report, November 2025, driver 580.95.05), in KiB.
TOTAL = 125_513_720
USED_AT_REST = 5_088_412
# Of what is used at rest, what the kernel attributes. The rest, 2.3 GiB, is driver and firmware, as on a Spark at rest.
ANONYMOUS = 1_900_000
SLAB = 640_000
KERNEL_STACK = 19_000
PAGE_TABLES = 52_000
PER_CPU = 47_000
PAGE_CACHE_AT_REST = 2_728_844
SWAP = 16_777_212

# What stays in the cache after a drop: dirty and mapped pages.
CACHE_AFTER_DROP = 300_000
BUFFERS = 200_000
SHARED = 20_596
HUGE_PAGES = "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n"


def write_in_place(path: Path, text: str) -> None:
    """Keep the inode (it is mounted elsewhere), and never let a reader see an empty file."""
    data = text.encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def meminfo(gpu_kib: int, page_cache_kib: int) -> str:
    used = USED_AT_REST + gpu_kib
    available = max(TOTAL - used, 0)
    cache = min(page_cache_kib, available)
    buffers = min(BUFFERS, cache)
    rows = {
        "MemTotal": TOTAL,
        "MemFree": available - cache,
        "MemAvailable": available,
        "Buffers": buffers,
        "Cached": cache - buffers,
        "SwapCached": 0,
        "Active": used // 2,
        "Inactive": cache,
        "Active(file)": cache // 2,
        "Inactive(file)": cache - cache // 2,
        "SwapTotal": SWAP,
        "SwapFree": SWAP,
        "Dirty": 0,
        "AnonPages": ANONYMOUS,
        "Shmem": SHARED,
        "Slab": SLAB,
        "SReclaimable": 0,
        "KernelStack": KERNEL_STACK,
        "PageTables": PAGE_TABLES,
        "Percpu": PER_CPU,
        "CmaTotal": 0,
        "CmaFree": 0,
    }
    lines = [f"{name + ':':<16}{value:>8} kB\n" for name, value in rows.items()]
    return "".join(lines) + HUGE_PAGES


class Pool:
    """Figures for /proc/meminfo. page_cache_mib is read anew each time: write to it to fill the page cache."""

    def __init__(self, folder: Path) -> None:
        self.figures = folder / "meminfo"
        self._cache_file = folder / "page_cache_mib"
        self._drop_file = folder / "drop_caches"
        self._last = ""
        self._last_found: list[Holder] | None = None
        if not self._cache_file.exists():
            self._set_cache(PAGE_CACHE_AT_REST)

    def update(self) -> None:
        self._drop_when_asked()
        found = scan()
        if found != self._last_found:
            write_in_place(SEEN_FILE, as_json(found))
            self._last_found = found
        text = meminfo(1024 * sum(holder.mib for holder in found), self._cache())
        if text != self._last:
            write_in_place(self.figures, text)
            self._last = text

    def _drop_when_asked(self) -> None:
        try:
            asked = self._drop_file.read_text().strip()
        except OSError:
            return
        if not asked:
            return
        os.truncate(self._drop_file, 0)
        # 1 = page cache, 2 = dentries and inodes (not simulated), 3 = both
        if asked in {"1", "3"} and self._cache() > CACHE_AFTER_DROP:
            self._set_cache(CACHE_AFTER_DROP)

    def _cache(self) -> int:
        try:
            return 1024 * int(self._cache_file.read_text())
        except (OSError, ValueError):
            return PAGE_CACHE_AT_REST  # just being written

    def _set_cache(self, kib: int) -> None:
        write_in_place(self._cache_file, f"{kib // 1024}\n")
