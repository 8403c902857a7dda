# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""GPU architectures for which a library holds code, read from the headers in it without reading the code.

PRIVATE to this collection. CUDA puts the code into the sections .nv_fatbin and __nv_relfatbin of an ELF file: containers, each
a header and entries, each a header and the code for one architecture, as a binary (sm_90) or as PTX (compute_90).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

# read(offset, size): of a file; shorter at its end.
ReadAt = Callable[[int, int], bytes]

_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
# ELF for 64 bits, little-endian: class and data of the identification.
_ELF_START = b"\x7fELF\x02\x01"
_SECTION_SIZE = 64
# A library has dozens of sections; a damaged header may claim 65535 of any size.
_MOST_SECTIONS = 1000
_NAMES_LIMIT = 1 << 20
# Of a container and of an entry: magic, version, size of the header, size of what follows; kind, version, size of the
# header, size of the code, ..., architecture (public descriptions of the format; compared with cuobjdump in tests/registry).
_CONTAINER_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ12xI")
_KINDS = {1: "compute", 2: "sm"}
_ALIGNMENT = 8
_MOST_PADDING = 512
# The largest library, libtorch_cuda.so, has some ten thousand.
_MOST_ENTRIES = 200_000


def gpu_archs(read: ReadAt) -> list[str]:
    """Such as sm_90 and compute_90, sorted; empty for a file without code for GPUs."""
    found: set[tuple[str, int]] = set()
    try:
        for number, (kind, arch) in enumerate(_entries(read)):
            found.add((kind, arch))
            if number > _MOST_ENTRIES:
                break
    except struct.error:
        # Damaged, or of a kind that is not known: what was found so far is there.
        pass
    return [f"{kind}_{arch}" for kind, arch in sorted(found, key=lambda item: (item[1], item[0]))]


def _entries(read: ReadAt) -> Iterator[tuple[str, int]]:
    for start, size in _sections(read):
        position, end, padding = start, start + size, 0
        while position + _CONTAINER.size <= end:
            magic, _version, header, length = _CONTAINER.unpack(read(position, _CONTAINER.size))
            if magic != _CONTAINER_MAGIC:
                position, padding = position + _ALIGNMENT, padding + _ALIGNMENT
                if padding > _MOST_PADDING:
                    break
                continue
            padding = 0
            position += header or _CONTAINER.size
            yield from _entries_of(read, position, min(position + length, end))
            position = -(-(position + length) // _ALIGNMENT) * _ALIGNMENT


def _entries_of(read: ReadAt, position: int, end: int) -> Iterator[tuple[str, int]]:
    while position + _ENTRY.size <= end:
        kind, _version, header, length, arch = _ENTRY.unpack(read(position, _ENTRY.size))
        if kind in _KINDS:
            yield _KINDS[kind], arch
        if not header:
            return
        position += header + length


def _sections(read: ReadAt) -> list[tuple[int, int]]:
    """(offset, size) of the sections with code for GPUs."""
    start = read(0, 64)
    if not start.startswith(_ELF_START):
        return []
    (table,) = struct.unpack_from("<Q", start, 40)
    entry, count, names_index = struct.unpack_from("<HHH", start, 58)
    if entry != _SECTION_SIZE or count > _MOST_SECTIONS or names_index >= count:
        return []
    headers = read(table, count * _SECTION_SIZE)
    fields = [struct.unpack_from("<I20xQQ", headers, index * _SECTION_SIZE) for index in range(count)]
    _name, names_offset, names_size = fields[names_index]
    names = read(names_offset, min(names_size, _NAMES_LIMIT))
    return [(offset, size) for name, offset, size in fields if names[name:].partition(b"\0")[0] in _SECTIONS]
