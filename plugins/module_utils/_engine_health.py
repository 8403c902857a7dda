# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine's own health page.

PRIVATE to this collection. The standard library's client: Ansible's costs each look a twentieth of a second to import.
"""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

# The API is on this host: an answer that takes longer than this is none.
HEALTH_TIMEOUT_SECONDS = 3


def health_status(url: str) -> int:
    """HTTP status, 0 while nothing answers. 200 says that the engine has loaded, not that all ranks live."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=HEALTH_TIMEOUT_SECONDS)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
