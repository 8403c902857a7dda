# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A server on the loopback that behaves like the Hugging Face hub for one model: listing, redirects, ranges, and its failures."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE = 1000  # bytes; from here on a file is kept elsewhere and redirected to
_CHUNK = 1 << 16


@dataclass
class Hub:
    """token: without it nothing is given. busy: so many requests for content get 503. cut_after: content connections end there."""

    folder: Path
    repository: str = "lab/model"
    token: str = ""
    busy: int = 0
    cut_after: int = 0
    cuts: int = 0
    sent: int = 0
    ranges: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def files(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.folder.iterdir()):
            content = path.read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry = {"type": "file", "path": path.name, "size": len(content), "oid": blob}
            if len(content) >= _LARGE:
                entry["lfs"] = {"oid": sha256, "sha256": sha256, "size": len(content), "pointerSize": 130}
            found.append(entry)
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        authorization = self.headers.get("Authorization", "")
        if authorization:
            self.hub.tokens.add(authorization)
        if self.hub.token and not path.startswith("/elsewhere/") and authorization != f"Bearer {self.hub.token}":
            self._plain(401, b"Invalid credentials", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif path.startswith("/api/models/"):
            self._api(path)
        elif found := re.fullmatch(rf"/{self.hub.repository}/resolve/[^/]+/(.+)", path):
            self._resolve(found[1])
        elif path.startswith("/elsewhere/"):
            self._content(self.hub.folder / path.removeprefix("/elsewhere/"))
        else:
            self._plain(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _api(self, path: str) -> None:
        rest = path.removeprefix("/api/models/")
        if not rest.startswith(self.hub.repository):
            self._plain(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif "/tree/" in rest:
            self._plain(200, json.dumps(self.hub.files()).encode())
        else:
            siblings = [
                {"rfilename": file["path"], "size": file["size"], "blobId": file["oid"], "lfs": file.get("lfs")}
                for file in self.hub.files()
            ]
            info = {"id": self.hub.repository, "modelId": self.hub.repository, "sha": COMMIT, "siblings": siblings}
            self._plain(200, json.dumps({**info, "private": False, "tags": [], "downloads": 0, "likes": 0}).encode())

    def _resolve(self, name: str) -> None:
        entry = next((file for file in self.hub.files() if file["path"] == name), None)
        if entry is None:
            self._plain(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": COMMIT}
        if "lfs" in entry:
            headers["X-Linked-Size"] = str(entry["size"])
            headers["X-Linked-Etag"] = f'"{entry["lfs"]["oid"]}"'
            # Another host, as the hub's: huggingface_hub follows only redirects within one host by itself.
            headers["Location"] = f"http://localhost:{self.server.server_address[1]}/elsewhere/{name}"
            self._plain(302, b"", headers)
        else:
            self._content(self.hub.folder / name, {**headers, "ETag": f'"{entry["oid"]}"'})

    def _content(self, path: Path, headers: dict[str, str] | None = None) -> None:
        if self.command == "GET" and self.hub.busy > 0:
            self.hub.busy -= 1
            self._plain(503, b"", {"Retry-After": "1"})
            return
        content = path.read_bytes()
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked:
            self.hub.ranges.append(f"{path.name} from {asked[1]}")
            start = int(asked[1])
        self.send_response(206 if asked else 200)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        stop = len(content)
        if self.hub.cuts > 0 and stop - start > self.hub.cut_after:
            self.hub.cuts -= 1
            stop = start + self.hub.cut_after
        for offset in range(start, stop, _CHUNK):
            self.wfile.write(content[offset : min(offset + _CHUNK, stop)])
        self.hub.sent += stop - start
        if stop < len(content):
            self.close_connection = True

    def _plain(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class HubServer:
    """A context manager; url: what HF_ENDPOINT is set to."""

    def __init__(self, hub: Hub, address: str = "127.0.0.1", port: int = 0) -> None:
        handler = type("Handler", (_Handler,), {"hub": hub})
        self._server = ThreadingHTTPServer((address, port), handler)
        self._server.daemon_threads = True
        self.url = f"http://{address}:{self._server.server_address[1]}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
