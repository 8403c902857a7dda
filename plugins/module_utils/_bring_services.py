# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Everything that a deployment puts on a host, in one go: module host_services, and what holds once a deployment is accepted.

PRIVATE to this collection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _await_ray, _canary, _memguard, _mp_rank
from ansible_collections.dgxspark.serving.plugins.module_utils._compile_cache import prepare, to_be_removed
from ansible_collections.dgxspark.serving.plugins.module_utils._host_disks import GIB
from ansible_collections.dgxspark.serving.plugins.module_utils._host_program import (
    ProgramError,
    install_program,
    is_installed,
    program_path,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._host_secrets import (
    checked_lengths,
    keep_secret,
    new_secret,
    read_secret,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._host_services import (
    bring_up,
    file_changes,
    folder_changes,
    make_folders,
    units_to_start,
    write_changes,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import WorkloadError

PROGRAMS = {item.PROGRAM: item for item in (_await_ray, _canary, _memguard, _mp_rank)}
# GiB of all folders of compiled kernels: a bound, so that a disk does not fill with kernels of images that went. Not measured on real
# hosts.
COMPILE_CACHE_GIB = 20.0


class BringError(Exception):
    """An option cannot be used, or something could not be written or started; the message says what."""


def services_arguments() -> dict[str, Any]:
    """The options, as an argument spec."""
    texts: dict[str, Any] = {"type": "dict", "default": {}}
    return {
        "folders": texts,
        "files": texts,
        "initial_files": texts,
        "secrets": {"type": "dict", "default": {}, "no_log": True},
        "own_secrets": {"type": "dict", "default": {}, "no_log": False},
        "programs": {"type": "list", "elements": "str", "choices": list(PROGRAMS), "default": []},
        "compile_cache": {"type": "path"},
        "compile_cache_gib": {"type": "float", "default": COMPILE_CACHE_GIB},
        "units": {"type": "list", "elements": "str", "default": []},
    }


def _modes(folders: Mapping[str, Any]) -> dict[str, int]:
    try:
        return {path: int(str(mode), 8) for path, mode in folders.items()}
    except ValueError as error:
        raise BringError(f"folders must have an octal mode for each path, as a string: {error}") from error


def _own_secrets(lengths: Mapping[str, Any]) -> dict[str, int]:
    """Those that are missing."""
    try:
        return {
            path: length for path, length in checked_lengths(lengths, "own_secrets").items() if not read_secret(path)
        }
    except ValueError as error:
        raise BringError(str(error)) from error


def bring_services(options: Mapping[str, Any], check_mode: bool) -> dict[str, Any]:
    """What module host_services returns. options: those of services_arguments(). Raises BringError."""
    if options["compile_cache_gib"] <= 0:
        raise BringError(f"compile_cache_gib is {options['compile_cache_gib']:g}; it must be larger than 0.")
    try:
        return _bring(options, check_mode)
    except (OSError, ProgramError, WorkloadError) as error:
        raise BringError(f"Cannot bring the deployment's services to this host: {error}") from error


def _bring(options: Mapping[str, Any], check_mode: bool) -> dict[str, Any]:
    folders = _modes(options["folders"])
    programs = {name: PROGRAMS[name] for name in options["programs"] if not is_installed(name, PROGRAMS[name])}
    own_secrets = _own_secrets(options["own_secrets"])
    files = file_changes(options["files"], options["initial_files"], options["secrets"])
    cache = options["compile_cache"]
    removed = to_be_removed(cache, int(options["compile_cache_gib"] * GIB)) if cache else []
    written = [*folder_changes(folders), *own_secrets, *(change.path for change in files)]
    written += [program_path(name) for name in programs]
    if cache and not os.path.isdir(cache):
        written.append(cache)
    started = units_to_start(options["units"])
    seconds = 0.0
    if not check_mode:
        make_folders(folders)
        write_changes(files)
        for path, length in own_secrets.items():
            keep_secret(path, new_secret(length))
        for name, source in programs.items():
            install_program(name, source)
        if cache:
            prepare(cache, removed)
        began = time.monotonic()
        if started or any(change.path.startswith("/etc/systemd/") for change in files):
            bring_up(started)
        seconds = time.monotonic() - began
    return {
        "changed": bool(written or removed or started),
        "written": written,
        "removed": removed,
        "started": started,
        "start_seconds": round(seconds, 1),
        "diff": [change.diff() for change in files if not change.secret],
    }
