# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Damaged libraries; a real one is compared with cuobjdump in tests/registry."""

from __future__ import annotations

import random
import struct

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._fatbin import gpu_archs


def entry(kind: int, arch: int, code: bytes = b"x" * 40) -> bytes:
    return struct.pack("<HHIQ12xI", kind, 1, 64, len(code), arch).ljust(64, b"\0") + code


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(*containers: bytes) -> bytes:
    """An ELF file with the sections: none, names, .nv_fatbin."""
    names = b"\0.shstrtab\0.nv_fatbin\0\0\0"
    fat = b"".join(part.ljust(-(-len(part) // 16) * 16, b"\0") for part in containers)
    sections = struct.pack("<I20xQQ24x", 0, 0, 0)
    sections += struct.pack("<I20xQQ24x", 1, 64, len(names)) + struct.pack("<I20xQQ24x", 11, 64 + len(names), len(fat))
    table = 64 + len(names) + len(fat)
    header = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q", table)
    return header.ljust(58, b"\0") + struct.pack("<HHH", 64, 3, 1) + names + fat + sections


def read(content: bytes) -> list[str]:
    return gpu_archs(lambda offset, size: content[offset : offset + size])


LIBRARY = library(
    container(entry(2, 90), entry(1, 90), entry(2, 120)), container(entry(2, 80, b"y" * 9)), container(entry(2, 90))
)


def test_binaries_and_ptx_of_all_containers() -> None:
    assert read(LIBRARY) == ["sm_80", "compute_90", "sm_90", "sm_120"]


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library" * 100, library()])
def test_files_without_code_for_gpus(content: bytes) -> None:
    assert read(content) == []


def test_damage_neither_fails_nor_hangs() -> None:
    chance = random.Random(1)
    for _round in range(300):
        damaged = bytearray(LIBRARY)
        for _byte in range(6):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        read(bytes(damaged))
        read(LIBRARY[: chance.randrange(len(LIBRARY))])
