"""File systems of a fixed size for Docker's data and the model folder, so that a disk of a host can really be full."""

from __future__ import annotations

from pathlib import Path

from .settings import DOCKER_DISK_GIB, MODEL_DISK_GIB, Host
from .shell import run

SIZES_GIB = {"docker": DOCKER_DISK_GIB, "models": MODEL_DISK_GIB}


def docker_folder(host: Host) -> Path:
    return host.folder / "docker"


def model_folder(host: Host) -> Path:
    return host.folder / "models"


def mounted(folder: Path) -> bool:
    return folder.is_mount()


def mount(host: Host) -> None:
    for name, gib in SIZES_GIB.items():
        image, folder = host.folder / f"{name}.img", host.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if not image.exists():
            unfinished = image.with_suffix(".new")
            run(["truncate", "--size", f"{gib}G", unfinished])
            # -m 0: no blocks reserved for root, so that `df` and what can be written agree
            run(["mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", unfinished])
            unfinished.rename(image)
        if not mounted(folder):
            run(["mount", "-o", "loop,noatime,discard", image, folder])


def unmount(host: Host) -> None:
    for name in SIZES_GIB:
        if mounted(host.folder / name):
            run(["umount", host.folder / name])


def inner_containers(host: Host) -> list[str]:
    """Ids of the containers that the host's own engine keeps; readable without that engine."""
    folder = docker_folder(host) / "containers"
    return [path.name for path in folder.glob("*") if path.is_dir()] if folder.is_dir() else []
