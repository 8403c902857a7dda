"""A stand-in service: answers every request with its name, and ends at once when it is told to."""

from __future__ import annotations

import argparse
import json
import os
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType


def handler_for(name: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"service": name, "path": self.path}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.do_GET()

        def log_message(self, format: str, *arguments: object) -> None:
            pass  # polled by tests

    return Handler


def end(number: int, _frame: FrameType | None) -> None:
    # A container says how it ended, as a server without a handler does; a unit that is told to stop has not failed.
    os._exit(128 + number if os.getpid() == 1 else 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    # PID 1 of a container ignores signals without a handler; `docker stop` would wait 10 s.
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    ThreadingHTTPServer(("0.0.0.0", options.port), handler_for(options.name)).serve_forever()


if __name__ == "__main__":
    main()
