# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How a candidate image is called on the hosts.

PRIVATE to this collection.
"""

from __future__ import annotations

import re

PINNED_REFERENCE = re.compile(r"(?P<name>[^@]+)@(?P<digest>sha256:[0-9a-f]{64})")
# Digits of a digest that name an image which has no tag: as Docker shows ids.
_SHORT = 12


def local_name(reference: str) -> str:
    """The name that an image has on the hosts: the reference, or one made of it when it has a digest and no tag."""
    found = PINNED_REFERENCE.fullmatch(reference)
    if not found:
        return reference
    name = found["name"]
    if ":" in name.rpartition("/")[2]:
        return name
    return f"{name}:{found['digest'].partition(':')[2][:_SHORT]}"
