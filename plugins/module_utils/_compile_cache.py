# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compiled kernels that outlive a container: a folder of the host for each image, GPU and driver, all of them within a limit.

PRIVATE to this collection. First starts with cold caches took up to 36 minutes on this hardware (timeouts of the presets). Kernels of
another image, GPU or driver are of no use and may be wrong, so each of them has a folder of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = "/var/lib/dgxspark/cache/compile"
# Where the containers see their folder.
MOUNT = "/var/cache/dgxspark"
# Digits of the digest that names a folder: as Docker shortens ids.
_SHORT = 12


def cache_environment() -> dict[str, str]:
    """Variables that lead each compiler into the mounted folder.

    vLLM's documentation of its environment, Triton's and FlashInfer's knobs, and the CUDA programming guide (CUDA_CACHE_PATH).
    FlashInfer puts .cache/flashinfer below its base.
    """
    return {
        "VLLM_CACHE_ROOT": f"{MOUNT}/vllm",
        "TORCHINDUCTOR_CACHE_DIR": f"{MOUNT}/inductor",
        "TRITON_CACHE_DIR": f"{MOUNT}/triton",
        "FLASHINFER_WORKSPACE_BASE": MOUNT,
        "CUDA_CACHE_PATH": f"{MOUNT}/cuda",
    }


def cache_folder(image_id: str, gpus: Sequence[Mapping[str, Any]]) -> str:
    """The host's folder for this image on these GPUs (C(name) and C(driver) of each); empty without an image."""
    if not image_id:
        return ""
    kinds = sorted({f"{gpu.get('name')}|{gpu.get('driver')}" for gpu in gpus})
    return f"{FOLDER}/{hashlib.sha256('|'.join([image_id, *kinds]).encode()).hexdigest()[:_SHORT]}"


def used_bytes(folder: Path) -> int:
    """What the files take on the disk; those that vanish meanwhile do not count."""
    total = 0
    for root, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def to_be_removed(folder: str, limit_bytes: int) -> list[str]:
    """The folders beside this one that must go so that all fit into the limit, those unused for the longest first.

    The folder itself is among them when it is too large alone: compilers only ever add to it.
    """
    own = Path(folder)
    if not own.parent.is_dir():
        return []
    by_use = sorted((path for path in own.parent.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    sizes = {path: used_bytes(path) for path in by_use}
    total, going = sum(sizes.values()), []
    for path in [*(path for path in by_use if path != own), *(path for path in by_use if path == own)]:
        if total <= limit_bytes:
            break
        total -= sizes[path]
        going.append(str(path))
    return going


def prepare(folder: str, removed: Sequence[str]) -> None:
    """Remove those folders, and have this one, used last."""
    for path in removed:
        shutil.rmtree(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.utime(folder)
