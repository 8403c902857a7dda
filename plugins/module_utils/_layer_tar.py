# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The tar of a layer, byte for byte, put together from what the classic image store of the Docker Engine keeps.

PRIVATE to this collection. The engine unpacks a layer into a folder (overlay2) and notes everything of the tar that is not
content of a file in C(tar-split.json.gz) (github.com/vbatts/tar-split, package storage): a JSON object a line, of type 1 for
a file whose content comes from the folder, of type 2 for bytes as they were. So a layer can be read without C(docker save),
which first writes the whole image to the disk, and from any offset.
"""

from __future__ import annotations

import base64
import bisect
import gzip
import json
import os
from collections.abc import Iterator
from typing import Any

CHUNK_BYTES = 1024 * 1024
_FILE, _BYTES = 1, 2


class LayerTarError(Exception):
    """What the engine keeps of a layer is not what it noted; the message says where."""


class LayerTar:
    """A layer as a seekable tar. folder: of its files; notes: path of its tar-split.json.gz."""

    def __init__(self, folder: str, notes: str) -> None:
        self._folder = folder
        self._starts: list[int] = []
        # Bytes as they were, or the path of a file and its size.
        self._parts: list[bytes | tuple[str, int]] = []
        self.size = 0
        with gzip.open(notes, "rb") as lines:
            for line in lines:
                self._add(json.loads(line))

    def _add(self, entry: dict[str, Any]) -> None:
        if entry["type"] == _BYTES:
            content = base64.b64decode(entry.get("payload") or "")
            part: bytes | tuple[str, int] = content
            size = len(content)
        else:
            size = int(entry.get("size") or 0)
            # A name that is no UTF-8 is noted in base64.
            raw = entry.get("name_raw")
            name = os.fsdecode(base64.b64decode(raw)) if raw else str(entry.get("name") or "")
            part = (name, size)
        if size:
            self._starts.append(self.size)
            self._parts.append(part)
            self.size += size

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from C(start) to before C(stop). Raises LayerTarError."""
        stop = self.size if stop is None else min(stop, self.size)
        number = max(bisect.bisect_right(self._starts, start) - 1, 0)
        gathered = bytearray()
        while start < stop:
            part, begins = self._parts[number], self._starts[number]
            ends = self._starts[number + 1] if number + 1 < len(self._parts) else self.size
            first, last = start - begins, min(stop, ends) - begins
            if isinstance(part, bytes):
                gathered += part[first:last]
            elif last - first < CHUNK_BYTES:
                gathered += b"".join(self._file(part[0], first, last))
            else:
                yield bytes(gathered)
                gathered.clear()
                yield from self._file(part[0], first, last)
            if len(gathered) >= CHUNK_BYTES:
                yield bytes(gathered)
                gathered.clear()
            start = begins + last
            number += 1
        if gathered:
            yield bytes(gathered)

    def _file(self, name: str, first: int, last: int) -> Iterator[bytes]:
        # As the engine does: a name never leads out of the layer's folder.
        path = os.path.join(self._folder, os.path.normpath("/" + name).lstrip("/"))
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as handle:
                handle.seek(first)
                while first < last:
                    chunk = handle.read(min(CHUNK_BYTES, last - first))
                    if not chunk:
                        raise LayerTarError(f"{path} is shorter than the engine noted; the layer is damaged.")
                    first += len(chunk)
                    yield chunk
        except OSError as error:
            raise LayerTarError(f"{path} of a layer cannot be read: {error.strerror}") from error


def tar_size(notes: str) -> int:
    """Size of the tar without keeping what is in it."""
    size = 0
    with gzip.open(notes, "rb") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["type"] == _BYTES:
                payload = entry.get("payload") or ""
                size += len(payload) * 3 // 4 - payload[-2:].count("=")
            else:
                size += int(entry.get("size") or 0)
    return size
