# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the classic image store of the Docker Engine makes of a layer."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
from pathlib import Path


def take_apart(archive: bytes, folder: Path, notes: Path) -> None:
    """What the engine does with a layer: contents to the folder, all else to the notes."""
    lines, position, kept = [], 0, 0

    def keep(until: int) -> None:
        nonlocal kept
        if until > kept:
            lines.append({"type": 2, "payload": base64.b64encode(archive[kept:until]).decode()})
        kept = until

    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            keep(member.offset_data)
            position = member.offset_data + (member.size if member.isreg() else 0)
            path = folder / member.name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.isreg():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive[member.offset_data : position])
            entry = {"type": 1, "name": member.name}
            lines.append({**entry, "size": member.size, "payload": "AAAAAAAAAAA="} if member.isreg() else entry)
            kept = position
    keep(len(archive))
    with gzip.open(notes, "wt", encoding="utf-8") as handle:
        handle.write("".join(json.dumps({**line, "position": number}) + "\n" for number, line in enumerate(lines)))
