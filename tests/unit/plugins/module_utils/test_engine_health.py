"""The engine's health page, asked of a real server."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_health import health_status


@pytest.mark.parametrize("status", [200, 503])
def test_the_status_is_told(status: int) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert health_status(f"http://127.0.0.1:{server.server_port}/health") == status
        thread.join()


def test_nothing_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert health_status(f"http://127.0.0.1:{free.getsockname()[1]}/health") == 0
