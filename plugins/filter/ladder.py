# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._ladder import (
    EngineSettings,
    learned_key,
    recalled,
)


def recalled_changes(known: Mapping[str, Any], plan: Mapping[str, Any], image_id: str) -> dict[str, Any]:
    key = learned_key(plan["preset"], [host["name"] for host in plan["hosts"]], image_id)
    return recalled(known, key, EngineSettings.of(plan["engine"]))


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"recalled_changes": recalled_changes}
