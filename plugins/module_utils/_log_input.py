# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Logs that a module is given, as texts or as files of the host.

PRIVATE to this collection.
"""

from __future__ import annotations

import os
from typing import Any

# A start logs a few MiB even with NCCL_DEBUG=INFO; what is before belongs to older starts.
MOST_BYTES = 32 * 1024**2


class CannotLook(Exception):
    """Something that is needed cannot be read; the message says what."""


def log_arguments() -> dict[str, Any]:
    """The options, as an argument spec."""
    return {
        # No list: Ansible would split a text at its commas.
        "log": {"type": "raw"},
        "log_path": {"type": "list", "elements": "path", "default": []},
    }


def read_logs(texts: Any, paths: list[str]) -> list[str]:
    """The texts and the ends of the files. Raises CannotLook."""
    logs = [texts] if isinstance(texts, str) else list(texts or [])
    if not all(isinstance(text, str) for text in logs):
        raise CannotLook("log: it must be a text or a list of texts")
    for path in paths:
        try:
            with open(path, "rb") as handle:
                handle.seek(max(0, os.fstat(handle.fileno()).st_size - MOST_BYTES))
                logs.append(handle.read(MOST_BYTES).decode("utf-8", "replace"))
        except OSError as error:
            raise CannotLook(f"log_path: cannot read {path}: {error.strerror}") from error
    return logs
