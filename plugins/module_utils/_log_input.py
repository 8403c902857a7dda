# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Logs that a module is given, as texts or as files of the host.

PRIVATE to this collection.
"""

from __future__ import annotations

import os
from typing import Any


class CannotLook(Exception):
    """Something that is needed cannot be read; the message says what."""


def log_arguments() -> dict[str, Any]:
    """The options, as an argument spec."""
    return {
        # No list: Ansible would split a text at its commas.
        "log": {"type": "raw"},
        "log_path": {"type": "list", "elements": "path", "default": []},
    }


def read_logs(texts: Any, paths: list[str], most_bytes: int = 0) -> list[str]:
    """The texts and the files, or only so much of the end of each file. Raises CannotLook."""
    logs = [texts] if isinstance(texts, str) else list(texts or [])
    if not all(isinstance(text, str) for text in logs):
        raise CannotLook("log: it must be a text or a list of texts")
    for path in paths:
        try:
            with open(path, "rb") as handle:
                if most_bytes:
                    handle.seek(max(0, os.fstat(handle.fileno()).st_size - most_bytes))
                logs.append(handle.read(most_bytes or -1).decode("utf-8", "replace"))
        except OSError as error:
            raise CannotLook(f"log_path: cannot read {path}: {error.strerror}") from error
    return logs
