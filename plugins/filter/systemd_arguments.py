# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lists of arguments in a systemd unit file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def systemd_arguments(arguments: Sequence[Any]) -> str:
    """The arguments as one line of ExecStart=: each in quotes, with systemd's own specials escaped (systemd.service(5))."""
    quoted = []
    for argument in arguments:
        text = str(argument)
        if "\n" in text:
            raise ValueError(f"An argument of a unit must not hold a line break: {text!r}")
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
        quoted.append(f'"{escaped}"')
    return " ".join(quoted)


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"systemd_arguments": systemd_arguments}
