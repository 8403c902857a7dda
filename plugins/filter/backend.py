# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the ranks of a plan are brought together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._backend import (
    backend_arguments,
    rank_arguments,
    with_backend,
)


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"backend_arguments": backend_arguments, "rank_arguments": rank_arguments, "with_backend": with_backend}
