"""The hardware of a Spark that this machine lacks: one memory pool shared with the GPU, and the RoCE devices.

Runs as a service. It owns three places:
- /proc/meminfo, covered by a file that follows the holders of GPU memory and the simulated page cache;
- /proc/sys/vm/drop_caches, covered by a file, so that a write drops the simulated cache and never the outer machine's;
- /sys/class/infiniband, a tree that follows the real interfaces (link, addresses).
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import memory
import rdma

RUN = Path("/run/lab")
MEMORY_PERIOD = 0.2  # seconds; reading /proc that often costs 0.3 % of a core
RDMA_EVERY = 3  # memory periods


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def cover_outer_sysctls() -> None:
    """/proc/sys/vm is the outer machine's. Make it read-only here, all but our drop_caches."""
    drop = RUN / "drop_caches"
    drop.touch()
    drop.chmod(0o200)
    vm = Path("/proc/sys/vm")
    if not (vm / "drop_caches").samefile(drop):
        mount("--bind", vm, vm)
        mount("-o", "remount,bind,ro", vm)
        mount("--bind", drop, vm / "drop_caches")


def cover_meminfo(figures: Path) -> None:
    if not Path("/proc/meminfo").samefile(figures):
        mount("--bind", figures, "/proc/meminfo")


def add_infiniband_class(tree: Path) -> None:
    """sysfs takes no new folder, so one comes from an overlay; below it lies a live tree, which an overlay is not."""
    place = Path("/sys/class/infiniband")
    if not place.exists():
        lower = RUN / "class"
        (lower / "infiniband").mkdir(parents=True, exist_ok=True)
        mount("-t", "overlay", "lab", "-o", f"ro,lowerdir={lower}:/sys/class", "/sys/class")
    if not place.samefile(tree):
        mount("--bind", tree, place)


def main() -> None:
    RUN.mkdir(exist_ok=True)
    pool = memory.Pool(RUN)
    fabric = rdma.Fabric(RUN / "infiniband")
    pool.update()
    fabric.update()
    cover_outer_sysctls()
    cover_meminfo(pool.figures)
    add_infiniband_class(fabric.tree)
    subprocess.run(["systemd-notify", "--ready"], check=False)
    turn = 0
    while True:
        time.sleep(MEMORY_PERIOD)
        turn += 1
        pool.update()
        if turn % RDMA_EVERY == 0:
            fabric.update()


if __name__ == "__main__":
    main()
