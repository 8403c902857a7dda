# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._compile_cache import (
    MOUNT,
    cache_environment,
    cache_folder,
)


def compile_cache_folder(gpus: Sequence[Mapping[str, Any]], image_id: str) -> str:
    return cache_folder(image_id, gpus)


def compile_cache_volume(folder: str) -> dict[str, Any]:
    if not folder:
        return {"arguments": [], "environment": {}}
    return {"arguments": ["--volume", f"{folder}:{MOUNT}"], "environment": cache_environment()}


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"compile_cache_folder": compile_cache_folder, "compile_cache_volume": compile_cache_volume}
