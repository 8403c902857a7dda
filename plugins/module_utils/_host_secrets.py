# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The secrets of a deployment: the key of the API, which the head has alone, and the token of Ray, which all hosts share.

PRIVATE to this collection.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._files import content_and_mode, write_file

SECRET_MODE = 0o400
SECRET_FOLDER_MODE = 0o750
# 32 letters and digits are 190 bits: more than the 128 that nobody can guess (NIST SP 800-131A).
MINIMUM_LENGTH = 32
# Letters and digits only: a secret goes into HTTP headers and environment files as it is.
_SECRET_ALPHABET = string.ascii_letters + string.digits


def read_secret(path: str) -> str | None:
    """The secret of a file, or None where there is none. Raises OSError when it cannot be read."""
    present = content_and_mode(path)
    return present[0].decode("utf-8").strip() if present else None


def secret_digests(paths: Sequence[str]) -> dict[str, str]:
    """SHA-256 of each secret that is there: enough to see whether hosts have the same. Raises OSError when one cannot be read."""
    found = {path: read_secret(path) for path in paths}
    return {path: hashlib.sha256(secret.encode()).hexdigest() for path, secret in found.items() if secret}


def secrets_in_place(known: Mapping[str, Mapping[str, str]], head: str, shared: Sequence[str]) -> bool:
    """Whether all hosts have the same of those that they share. known: host to secret_digests() of it."""
    wanted = known.get(head) or {}
    if not all(path in wanted for path in shared):
        return False
    return all((found or {}).get(path) == wanted[path] for found in known.values() for path in shared)


def checked_lengths(lengths: Any, option: str) -> dict[str, int]:
    """Path of a secret to the number of its characters. Raises ValueError naming the option."""
    try:
        checked = {str(path): int(length) for path, length in lengths.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{option} must have a number for each path: {error}") from error
    short = [f"{path}: {length}" for path, length in checked.items() if length < MINIMUM_LENGTH]
    if short:
        raise ValueError(f"{option} has {', '.join(short)}; a secret needs at least {MINIMUM_LENGTH} characters.")
    return checked


def new_secret(length: int) -> str:
    return "".join(secrets.choice(_SECRET_ALPHABET) for _number in range(length))


def keep_secret(path: str, secret: str) -> None:
    """Write a new secret that nobody but root can read."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.chmod(os.path.dirname(path), SECRET_FOLDER_MODE)
    write_file(path, secret.encode(), SECRET_MODE)
