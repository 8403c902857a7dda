# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Room on disks: where images and where the model will lie.

PRIVATE to this collection.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandRunner

GIB = 1024**3


def measure(path: str) -> dict[str, Any]:
    """Free and total GiB of the file system that holds C(path), or would hold it, and what lies in it already."""
    existing = os.path.abspath(path)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    usage = shutil.disk_usage(existing)
    return {
        "path": path,
        "exists": os.path.exists(path),
        "total_gib": round(usage.total / GIB, 2),
        "free_gib": round(usage.free / GIB, 2),
    }


def weights_gib(folder: str) -> float:
    """GiB of the files directly in a model folder. Links are followed: a Hugging Face cache consists of them."""
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file()) / GIB
    except OSError:
        return 0.0


def judge_room(
    subject: str, name: str, disk: Mapping[str, Any], needed_gib: float, present_gib: float
) -> list[Finding]:
    """A copy brings what is missing."""
    missing = needed_gib - present_gib
    if missing <= float(disk["free_gib"]):
        return []
    return [
        Finding(
            "HOST.DISK_FULL",
            ERROR,
            subject,
            f"{disk['path']} ({name}) needs {missing:.3g} GiB more, and its disk has {disk['free_gib']:.3g} GiB free "
            f"of {disk['total_gib']:.3g}.",
            f"Make room on it (df -h {disk['path']}), or set spark_model_folder to a larger disk.",
        )
    ]


def local_images(references: Sequence[str], run: CommandRunner) -> dict[str, dict[str, Any]]:
    """Id, size and digests (in registries) of those images that the engine has."""
    if not references:
        return {}
    # It ends with 1 when one is missing, and still prints all others.
    answer = run(["docker", "image", "inspect", *references])
    try:
        inspected = json.loads(answer.stdout or "[]")
    except ValueError:
        return {}
    found = {}
    for reference in references:
        for image in inspected:
            names = [*(image.get("RepoTags") or ()), *(image.get("RepoDigests") or ()), image.get("Id", "")]
            if reference in names or f"{reference}:latest" in names:
                found[reference] = {
                    "id": image["Id"],
                    "size_gib": round(int(image.get("Size") or 0) / GIB, 2),
                    "digests": sorted(image.get("RepoDigests") or ()),
                }
    return found
