# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Models in a cache of the Hugging Face hub: a folder per repository with blobs, and snapshots of links to them.

PRIVATE to this collection. Such a model is used where it is. A container must see the folder of the repository, not only the
snapshot: the links lead out of that.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import ModelFolderError, examine

# huggingface_hub, file_download.py: repo_folder_name() and the layout of the cache.
_SNAPSHOT = re.compile(r"(?P<mount>.*/models--[^/]+)/snapshots/[^/]+/?")
# Where caches are when nobody says otherwise, and where HF_HOME often points on a Spark.
CACHES = ("/root/.cache/huggingface/hub", "/home/*/.cache/huggingface/hub")


@dataclass(frozen=True)
class Location:
    """folder: of the model; mount: what a container must see of the host for it."""

    folder: str
    mount: str


def mount_of(folder: str) -> str:
    """The folder itself, or the repository's of a snapshot in a hub cache."""
    found = _SNAPSHOT.fullmatch(folder)
    return found["mount"] if found else folder.rstrip("/") or "/"


def locate(folder: str, repository: str, caches: Iterable[str] = CACHES) -> dict[str, Any]:
    """Where the host has the model, or should get it: C(folder), C(mount), whether it is C(complete), and what the folder lacks (C(problem))."""
    problem = ""
    try:
        examine(folder)
    except (ModelFolderError, OSError) as error:
        problem = str(error)
    found = find_complete(repository, caches) if problem and repository else None
    place = found or Location(folder, mount_of(folder))
    return {"folder": place.folder, "mount": place.mount, "complete": bool(found) or not problem, "problem": problem}


def find_complete(repository: str, caches: Iterable[str] = CACHES) -> Location | None:
    """A complete snapshot of C(owner/name), the newest first."""
    name = "models--" + repository.replace("/", "--")
    snapshots = [path for cache in caches for path in glob.glob(f"{cache}/{name}/snapshots/*")]
    for folder in sorted(snapshots, key=os.path.getmtime, reverse=True):
        try:
            examine(folder)
        except ModelFolderError:
            continue
        return Location(folder, mount_of(folder))
    return None
