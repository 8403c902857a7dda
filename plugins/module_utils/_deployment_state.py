# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Is a host what the plan wants it to be already?

PRIVATE to this collection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ansible_collections.dgxspark.serving.plugins.module_utils._files import json_object
from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import RULES_FILE, TABLE
from ansible_collections.dgxspark.serving.plugins.module_utils._image_sync import image_identity
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import ModelFolderError, examine
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import STATE_FILE
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandRunner,
    containers,
    run_command,
    units,
)


def differences(
    files: Mapping[str, str],
    services: Mapping[str, str],
    image: str,
    image_id: str,
    model_folder: str,
    state_file: str = STATE_FILE,
    run: CommandRunner = run_command,
) -> list[str]:
    """What differs from the plan on this host, a phrase each; empty when it is converged.

    files: path to content; services: unit to the container it runs, empty for none; image_id: the image's id on the head.
    """
    found = []
    state = json_object(state_file)
    if not state:
        return ["no deployment was accepted here yet"]
    for path, content in files.items():
        try:
            with open(path, encoding="utf-8") as handle:
                same = handle.read() == content
        except OSError:
            same = False
        if not same:
            found.append(f"{path} differs" if os.path.exists(path) else f"{path} is missing")
    if RULES_FILE in files and run(["nft", "list", "table", *TABLE.split()]).returncode:
        found.append(f"the firewall's table {TABLE} does not stand")
    identity = image_identity(image, run)
    if identity is None or identity.id != image_id:
        found.append(f"image {image} is {'another one' if identity else 'missing'}")
    running = {container.name: container for container in containers(run)}
    for unit, container in zip(units(list(services), run), services.values(), strict=True):
        present = running.get(container)
        if unit.active != "active" or (container and (present is None or not present.alive)):
            found.append(f"{unit.name} does not run")
        elif present and present.image_id != image_id:
            found.append(f"{unit.name} runs another image")
        if unit.enabled != "enabled":
            found.append(f"{unit.name} is not enabled")
    try:
        if examine(model_folder).digest != state.get("model_digest"):
            found.append(f"{model_folder} is not the accepted model")
    except ModelFolderError as error:
        found.append(str(error))
    return found
