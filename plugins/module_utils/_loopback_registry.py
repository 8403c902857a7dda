# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A read-only registry on this host's loopback address, from which its own engine pulls what the head offers on the fabric.

PRIVATE to this collection. Every engine takes a registry on 127.0.0.0/8 without TLS and without a setting, so none is changed.
What the engine asks for is asked of the head, with the run's token, which the engine never sees. When the connection to the
head breaks in the middle of a layer, it is taken up again at the same byte; the engine does not notice.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import (
    Page,
    RendezvousError,
    Site,
    Target,
    answer_page,
)

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1024 * 1024
# First byte of every TLS connection (RFC 8446, record type handshake).
_TLS_HANDSHAKE = b"\x16"
# How long a broken connection to the head is tried again, and how long between two tries: a head that boots needs a minute,
# and then its offer is gone.
RETRY_SECONDS = 30
RETRY_EVERY_SECONDS = 1


class LoopbackRegistry:
    """A context manager. address: host:port for references. bytes_sent: of blobs, to the engine."""

    def __init__(self, site: Site) -> None:
        self.bytes_sent = 0
        self.failure = ""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                """containerd tries TLS first, and takes plain HTTP when it is told so in plain HTTP, at once (HTTPFallback)."""
                if self.connection.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE:
                    self.connection.recv(CHUNK_BYTES)
                    self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                else:
                    super().handle()

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = self.path.lstrip("/")
                try:
                    page = Page(_Empty()) if path.rstrip("/") == "v2" else site(path)
                    if page is None:
                        self.send_error(404)
                    else:
                        answer_page(self, registry.counted(page) if "/blobs/" in path else page)
                except (RendezvousError, OSError, http.client.HTTPException) as error:
                    # The engine says only that a connection was closed; this is why.
                    registry.failure = registry.failure or str(error)
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: the module's result is the log."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.daemon_threads = True
        self.address = f"{LOOPBACK}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> LoopbackRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def counted(self, page: Page) -> Page:
        return Page(_Counted(page, self._count), page.media_type, page.headers)

    def _count(self, size: int) -> None:
        self.bytes_sent += size


class _Empty:
    size = 2

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        yield b"{}"[start:stop]


@dataclass(frozen=True)
class _Counted:
    page: Page
    count: Callable[[int], None]

    @property
    def size(self) -> int:
        return self.page.content.size

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        for chunk in self.page.content.chunks(start, stop):
            self.count(len(chunk))
            yield chunk


@dataclass(frozen=True)
class HeadContent:
    """A page of the head, read over the fabric from any offset; a broken connection is taken up where it broke."""

    target: Target
    path: str
    size: int

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        stop = self.size if stop is None else stop
        broken_since = 0.0
        while start < stop:
            try:
                response = self.target.request("GET", self.path, headers={"Range": f"bytes={start}-{stop - 1}"})
                if response.status not in (200, 206):
                    raise RendezvousError(f"The head refuses /{self.path} with status {response.status}.")
                with contextlib.closing(response):
                    while start < stop and (chunk := response.read(min(CHUNK_BYTES, stop - start))):
                        start += len(chunk)
                        broken_since = 0.0
                        yield chunk
            except (OSError, http.client.HTTPException) as error:
                reason = str(error)
            else:
                reason = "it ended early"
            if start < stop:
                broken_since = broken_since or time.monotonic()
                if time.monotonic() - broken_since > RETRY_SECONDS:
                    raise RendezvousError(
                        f"The connection to the head at {self.target.address}:{self.target.port} broke and did not come back within "
                        f"{RETRY_SECONDS} s: {reason}. Run again: what has arrived is not copied a second time."
                    )
                time.sleep(RETRY_EVERY_SECONDS)


def head_site(target: Target, known: int) -> Site:
    """What the head offers. known: how many of the lowest layers this host's engine has."""

    def page(path: str) -> Page | None:
        asked = f"{path}?known={known}" if "/manifests/" in path else path
        response = target.request("HEAD", asked)
        response.read()
        if response.status == 404:
            return None
        if response.status != 200:
            raise RendezvousError(f"The head refuses /{path} with status {response.status}.")
        headers = {name: value for name, value in response.getheaders() if name.lower() == "docker-content-digest"}
        content = HeadContent(target, asked, int(response.headers["Content-Length"]))
        return Page(content, response.headers["Content-Type"], headers)

    return page
