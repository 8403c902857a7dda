# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine's own health page.

PRIVATE to this collection.
"""

from __future__ import annotations

from ansible.module_utils.urls import open_url

# The API is on this host: an answer that takes longer than this is none.
HEALTH_TIMEOUT_SECONDS = 3


def health_status(url: str) -> int:
    """HTTP status of the engine's health page, 0 while nothing answers. 200 says that the engine has loaded, not that all ranks live."""
    try:
        return int(open_url(url, timeout=HEALTH_TIMEOUT_SECONDS, use_proxy=False).status)
    except OSError as error:
        return int(getattr(error, "code", 0) or 0)
