# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.dgxspark.serving.plugins.filter.compile_cache import compile_cache_volume
from ansible_collections.dgxspark.serving.plugins.module_utils import _compile_cache as cache

KB = 1024
GB10 = {"name": "NVIDIA GB10", "driver": "580.95.05"}


def filled(folder: Path, kib: int, used: int) -> str:
    folder.mkdir(parents=True)
    (folder / "kernel.so").write_bytes(os.urandom(kib * KB))
    os.utime(folder, (used, used))
    return str(folder)


def test_folder_is_another_one_for_another_image_gpu_or_driver() -> None:
    same = cache.cache_folder("sha256:1", [GB10])
    assert same == cache.cache_folder("sha256:1", [dict(GB10), dict(GB10)])
    others = [
        cache.cache_folder("sha256:2", [GB10]),
        cache.cache_folder("sha256:1", [{**GB10, "driver": "590.1"}]),
        cache.cache_folder("sha256:1", [{**GB10, "name": "NVIDIA H200"}]),
        cache.cache_folder("sha256:1", []),
    ]
    assert len({same, *others}) == 5
    assert cache.cache_folder("", [GB10]) == ""


def test_every_compiler_writes_below_the_mount() -> None:
    volume = compile_cache_volume("/host")
    assert volume["arguments"] == ["--volume", f"/host:{cache.MOUNT}"]
    assert all(path == cache.MOUNT or path.startswith(f"{cache.MOUNT}/") for path in volume["environment"].values())
    assert compile_cache_volume("") == {"arguments": [], "environment": {}}


@pytest.mark.parametrize(
    ("limit_kib", "removed"), [(400, []), (350, ["old"]), (250, ["old", "newer"]), (50, ["old", "newer", "own"])]
)
def test_folders_unused_for_the_longest_go_first(tmp_path: Path, limit_kib: int, removed: list[str]) -> None:
    filled(tmp_path / "newer", 100, 2000)
    filled(tmp_path / "old", 100, 1000)
    own = filled(tmp_path / "own", 150, 500)
    assert [Path(path).name for path in cache.to_be_removed(own, limit_kib * KB)] == removed


def test_preparing_marks_the_folder_as_used(tmp_path: Path) -> None:
    own, other = tmp_path / "cache" / "own", tmp_path / "cache" / "other"
    assert cache.to_be_removed(str(own), 1) == []
    cache.prepare(str(own), [])
    assert own.stat().st_mode & 0o777 == 0o700
    filled(other, 1, 1000)
    os.utime(own, (500, 500))
    cache.prepare(str(own), [str(other)])
    assert not other.exists()
    assert own.stat().st_mtime > 1000
