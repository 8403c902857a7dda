# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan as later gates know it: how its ranks are brought together, where its model is, what they run, what they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._backend import (
    rank_arguments,
    with_backend,
    with_model,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_command import engine_command
from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import let_in_arguments
from ansible_collections.dgxspark.serving.plugins.module_utils._host_secrets import secrets_in_place


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "engine_command": engine_command,
            "let_in_arguments": let_in_arguments,
            "rank_arguments": rank_arguments,
            "secrets_in_place": secrets_in_place,
            "with_backend": with_backend,
            "with_model": with_model,
        }
