# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files that are whole or not there at all.

PRIVATE to this collection. Standard library only, it is part of host programs.
"""

from __future__ import annotations

import json
import os
from typing import Any


def content_and_mode(path: str) -> tuple[bytes, int] | None:
    """None where there is no such file. Raises OSError when it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return handle.read(), os.fstat(handle.fileno()).st_mode & 0o7777
    except FileNotFoundError:
        return None


def json_object(path: str) -> dict[str, Any]:
    """What was noted there; empty when there is nothing, or nothing that can be used."""
    try:
        with open(path, encoding="utf-8") as handle:
            loaded = json.load(handle)
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def write_file(path: str, content: bytes, mode: int) -> None:
    """Whole or not at all, also when the host goes down meanwhile."""
    partial = f"{path}.new"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    os.chmod(partial, mode)
    os.replace(partial, path)
