# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Has a host the image and the model already? One look on every host; when all have the same, nothing need be offered or copied.

PRIVATE to this collection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._hub_cache import mount_of
from ansible_collections.dgxspark.serving.plugins.module_utils._image_store import Engine, ImageStoreError
from ansible_collections.dgxspark.serving.plugins.module_utils._image_sync import (
    ImageIdentity,
    ImageSyncError,
    full_identity,
    names_of,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import (
    ModelFolderError,
    differing_facts,
    examine,
    unreadable,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandRunner, run_command


def look(image: str, folder: str, facts: Mapping[str, Any], run: CommandRunner = run_command) -> dict[str, Any]:
    """What this host has. Whatever is missing, damaged or in the way only says so: staging repairs it or explains it.

    image: its identity and C(names), the digests and id under which the engine knows it, or None; model: digest and size in bytes of
    a complete one that is the planned one and that the engine's container can read, or None.
    """
    return {"image": _image(image, run), "model": _model(folder, facts)}


def _image(image: str, run: CommandRunner) -> dict[str, Any] | None:
    try:
        identity = full_identity(image, Engine.ask(run), run)
    except (ImageSyncError, ImageStoreError):
        return None
    return {"identity": identity.as_dict(), "names": names_of(image, run)} if identity else None


def _model(folder: str, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        model = examine(folder)
    except (ModelFolderError, OSError):
        return None
    if differing_facts(model.config, facts) or unreadable(mount_of(folder)):
        return None
    return {"digest": model.digest, "size": model.size}


def all_have_the_same(looks: Mapping[str, Mapping[str, Any]], head: str, digest: str) -> bool:
    """Whether every host has the head's image and model. digest: what the head's image must be known by; empty for any."""
    if not all(found.get("image") and found.get("model") for found in looks.values()):
        return False
    own = looks[head]
    if digest and digest not in own["image"]["names"]:
        return False
    wanted = ImageIdentity.from_dict(own["image"]["identity"])
    return all(
        ImageIdentity.from_dict(found["image"]["identity"]).same_content(wanted) and found["model"] == own["model"]
        for found in looks.values()
    )


def as_results(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What modules image_sync and model_weights return on a host that lacks nothing."""
    image = {"changed": False, "bytes_received": 0, "identity": found["image"]["identity"], "replaced": ""}
    weights = {
        "changed": False,
        "digest": found["model"]["digest"],
        "size_bytes": found["model"]["size"],
        "bytes_to_copy": 0,
        "bytes_received": 0,
        "repaired": [],
        "copy_seconds": 0.0,
    }
    return {"image": image, "weights": weights}
