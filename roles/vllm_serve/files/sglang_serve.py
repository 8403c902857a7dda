# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""SGLang's server with the key of its API from a file. Runs in the engine's container, with arguments of sglang.launch_server.

SGLang itself takes the key as an argument, and prints all arguments. So it does not get to know the key: what it serves stands behind
this check. /health and /metrics are open, as with vLLM.
"""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

KEY_FILE = "/run/dgxspark/api-key"
OPEN_PATHS = ("/health", "/metrics")
REFUSAL = b'{"error": {"message": "Unauthorized", "code": 401}}'

Application = Callable[[dict[str, Any], Any, Callable[[dict[str, Any]], Awaitable[None]]], Awaitable[None]]


class KeyRequired:
    """ASGI middleware: every request but those to OPEN_PATHS carries the key."""

    def __init__(self, app: Application, key: str) -> None:
        self.app = app
        self.expected = f"Bearer {key}".encode()

    async def __call__(
        self, scope: dict[str, Any], receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        if scope["type"] in ("http", "websocket") and not self.is_allowed(scope):
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(REFUSAL)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSAL})
            return
        await self.app(scope, receive, send)

    def is_allowed(self, scope: dict[str, Any]) -> bool:
        if scope.get("path", "").rstrip("/") in OPEN_PATHS:
            return True
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        return hmac.compare_digest(given, self.expected)


def main(arguments: list[str]) -> None:
    from sglang.srt.server_args import prepare_server_args

    server_args = prepare_server_args(arguments)
    if not int(server_args.node_rank or 0):
        from sglang.srt.entrypoints.http_server import app

        with open(KEY_FILE, encoding="utf-8") as handle:
            app.add_middleware(KeyRequired, key=handle.read().strip())
    from sglang.launch_server import run_server
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


# SGLang starts its processes by importing this file again.
if __name__ == "__main__":
    main(sys.argv[1:])
