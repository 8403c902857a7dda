"""Stand-in of sglang.launch_server: starts the stand-in of the server."""

from __future__ import annotations

from typing import Any


def run_server(server_args: Any) -> None:
    from sglang.srt.entrypoints.http_server import launch_server

    launch_server(server_args)
