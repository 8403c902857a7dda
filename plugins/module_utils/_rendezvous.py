# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The head offers something on the fabric, the other hosts fetch it, and the head waits until each has said how it went.

PRIVATE to this collection. One Ansible task runs on all hosts at the same time: the head's module serves, the others' fetch.
So data goes from host to host over the fabric, no key leaves the control node, and no server outlives the task. Requests carry
a token that is made for the run.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

# A target that has not said anything for so long is given up. Loading an image of 40 GB takes minutes without a word on the
# network, so targets report while they work (see REPORT_EVERY_SECONDS).
SILENCE_LIMIT_SECONDS = 120
REPORT_EVERY_SECONDS = 10
# How long a target waits for the head's offer: the tasks of all hosts start within seconds of each other.
OFFER_WAIT_SECONDS = 90
CHUNK_BYTES = 1024 * 1024


_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class RendezvousError(Exception):
    """Source and target did not find each other, or one gave up; the message says who and why."""


class PageContent(Protocol):
    """Something of a known size that can be read from any offset."""

    @property
    def size(self) -> int: ...

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class Page:
    """What a Source answers for a path below v2/."""

    content: PageContent
    media_type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict)


class Site(Protocol):
    """Is given the path without the leading slash."""

    def __call__(self, path: str, /) -> Page | None: ...


def answer_page(handler: BaseHTTPRequestHandler, page: Page, heard: Callable[[], None] = lambda: None) -> None:
    """Send a page, or the part of it that the request's Range asks for; of a HEAD request the headers only."""
    size = page.content.size
    asked = _RANGE.fullmatch(handler.headers.get("Range", ""))
    start = int(asked[1]) if asked else 0
    stop = min(int(asked[2]) + 1, size) if asked and asked[2] else size
    if asked and start >= size:
        handler.send_error(416)
        return
    handler.send_response(206 if asked else 200)
    if asked:
        handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
    handler.send_header("Content-Type", page.media_type)
    handler.send_header("Content-Length", str(stop - start))
    handler.send_header("Accept-Ranges", "bytes")
    for name, value in page.headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "HEAD":
        return
    for chunk in page.content.chunks(start, stop):
        handler.wfile.write(chunk)
        heard()


class Source:
    """Serves GET /PATH from C(offers) (path to a function that yields bytes) and collects the targets' reports."""

    def __init__(
        self,
        address: str,
        port: int,
        token: str,
        offers: Mapping[str, Callable[[], Iterator[bytes]]],
        site: Site | None = None,
    ) -> None:
        self.reports: dict[str, dict[str, Any]] = {}
        # What each target said last, finished or not.
        self.news: dict[str, dict[str, Any]] = {}
        self.last_word = time.monotonic()
        try:
            self._server = ThreadingHTTPServer((address, port), _handler(self, token, offers, site))
        except OSError as error:
            raise RendezvousError(
                f"Cannot offer data to the other hosts at {address}:{port}: {error}. The address must be this host's own on the "
                "fabric (spark_fabric_addresses), and the port free."
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def heard(self) -> None:
        """Somebody is at work."""
        self.last_word = time.monotonic()

    def __enter__(self) -> Source:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for(
        self,
        targets: Sequence[str],
        silence_limit: float = SILENCE_LIMIT_SECONDS,
        busy: Callable[[], bool] = lambda: False,
    ) -> dict[str, dict[str, Any]]:
        """The last report of each target. Raises RendezvousError when all that are missing stay silent for too long.

        busy: whether this host itself still works on what they wait for.
        """
        while missing := [target for target in targets if target not in self.reports]:
            if busy():
                self.heard()
            if time.monotonic() - self.last_word > silence_limit:
                raise RendezvousError(
                    f"No word from {', '.join(missing)} for {silence_limit:.0f} s while it should fetch from this host over the fabric."
                )
            time.sleep(0.2)
        return dict(self.reports)


def _handler(
    source: Source, token: str, offers: Mapping[str, Callable[[], Iterator[bytes]]], site: Site | None
) -> type[BaseHTTPRequestHandler]:
    """What answers the requests to a Source."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _authorized(self) -> bool:
            if hmac.compare_digest(self.headers.get("Authorization", ""), f"Bearer {token}"):
                return True
            self.send_error(403)
            return False

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if not self._authorized():
                return
            source.heard()
            if site and self.path.startswith("/v2/"):
                page = site(self.path.lstrip("/"))
                if page:
                    answer_page(self, page, source.heard)
                else:
                    self.send_error(404)
                return
            offer = offers.get(self.path.lstrip("/"))
            if offer is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in offer():
                source.heard()
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

        def do_POST(self) -> None:
            if not self._authorized():
                return
            report = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
            source.heard()
            source.news[self.path.lstrip("/")] = report
            if report.get("done"):
                source.reports[self.path.lstrip("/")] = report
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the module's result is the log."""

    return Handler


def tell_failure(address: str, port: int, token: str, targets: Sequence[str], reason: str) -> None:
    """Let the targets know that there will be no offer: otherwise they would wait for it."""
    if not targets:
        return
    content = json.dumps({"failed": reason}).encode()
    with (
        contextlib.suppress(RendezvousError),
        Source(address, port, token, {"manifest": lambda: iter([content])}) as source,
    ):
        source.wait_for(targets, OFFER_WAIT_SECONDS)


class Target:
    """The other side: fetches from a Source and reports to it."""

    def __init__(self, name: str, address: str, port: int, token: str) -> None:
        self.name, self.address, self.port = name, address, port
        self._headers = {"Authorization": f"Bearer {token}"}

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """One request over a connection of its own. Raises OSError and http.client.HTTPException."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=SILENCE_LIMIT_SECONDS)
        connection.request(method, f"/{path}", body=body, headers={**self._headers, **(headers or {})})
        return connection.getresponse()

    def fetch(self, path: str) -> http.client.HTTPResponse:
        """The offered bytes as a file. Waits for the offer; raises RendezvousError when there is none.

        An offer of another run, which knows another token, is one that the head is about to end.
        """
        deadline = time.monotonic() + OFFER_WAIT_SECONDS
        while True:
            try:
                response = self.request("GET", path)
                if response.status != 403 or time.monotonic() > deadline:
                    break
                time.sleep(0.5)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RendezvousError(
                        f"The head offers nothing at {self.address}:{self.port} after {OFFER_WAIT_SECONDS} s: {error}. Is the fabric up, "
                        "and does a firewall on the head let it through?"
                    ) from error
                time.sleep(0.5)
        if response.status != 200:
            raise RendezvousError(f"The head refuses /{path} with status {response.status}.")
        return response

    def fetch_manifest(self) -> bytes:
        """What the head offers. Raises RendezvousError when it says that it has nothing to offer."""
        text = self.fetch("manifest").read()
        failed = json.loads(text).get("failed")
        if failed:
            self.report(done=True, failed=f"the head: {failed}")
            raise RendezvousError(f"There is nothing to fetch from the head: {failed}")
        return text

    def report(self, done: bool, **values: Any) -> None:
        """Tell the source how it goes; C(done) ends its wait for this target."""
        body = json.dumps({"done": done, **values}).encode()
        try:
            self.request("POST", self.name, body).read()
        except OSError as error:
            if done:
                raise RendezvousError(f"The head at {self.address}:{self.port} is gone: {error}") from error

    def keep_reporting(self, news: Callable[[], Mapping[str, Any]] = dict) -> Callable[[], None]:
        """Say every few seconds that this host is at work, and C(news) of it; returns the function that ends it."""
        ended = threading.Event()

        def repeat() -> None:
            while not ended.wait(REPORT_EVERY_SECONDS):
                self.report(done=False, **news())

        threading.Thread(target=repeat, daemon=True).start()
        return ended.set
