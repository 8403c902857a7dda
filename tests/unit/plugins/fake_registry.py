# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A registry of images on the loopback interface that can misbehave in every way that is asked for."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def layer(files: dict[str, Any], compress: bool = True) -> bytes:
    """files: content by path; None is a folder, a TarInfo stands for itself, a str is a symbolic link."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        for path, content in files.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(path.lstrip("/"))
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
                continue
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            archive.addfile(member)
    return gzip.compress(body.getvalue(), 1) if compress else body.getvalue()


class FakeRegistry:
    """answer: asked first; (status, headers, body) or None for the usual. requests: (path, value of Authorization)."""

    def __init__(self) -> None:
        self.content: dict[str, tuple[str, bytes]] = {}
        self.requests: list[tuple[str, str]] = []
        self.answer: Callable[[str, str], tuple[int, dict[str, str], bytes] | None] = lambda path, authorization: None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.handle(self)

            do_POST = do_GET

            def log_message(self, *_arguments: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.name = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        authorization = request.headers.get("Authorization", "")
        self.requests.append((request.path, authorization))
        status, headers, body = self.answer(request.path, authorization) or self.usual(request.path)
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        try:
            request.wfile.write(body)
        except OSError:
            # The client has read enough.
            request.close_connection = True

    def usual(self, path: str) -> tuple[int, dict[str, str], bytes]:
        found = self.content.get(path.removeprefix("/v2/img/").split("/", 1)[-1])
        return (200, {"Content-Type": found[0]}, found[1]) if found else (404, {}, b"")

    def blob(self, content: bytes, media_type: str) -> dict[str, Any]:
        self.content[digest(content)] = (media_type, content)
        return {"mediaType": media_type, "digest": digest(content), "size": len(content)}

    def image(self, *layers: bytes, tag: str = "1", architecture: str = "arm64", **config: Any) -> dict[str, Any]:
        """layers: the oldest first. Returns the descriptor of the manifest."""
        about = {
            "os": "linux",
            "architecture": architecture,
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin"]},
            **config,
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.blob(json.dumps(about).encode(), "application/vnd.oci.image.config.v1+json"),
            "layers": [self.blob(content, LAYER) for content in layers],
        }
        return self.document(manifest, tag)

    def document(self, content: dict[str, Any], tag: str) -> dict[str, Any]:
        body = json.dumps(content).encode()
        self.content[tag] = (content["mediaType"], body)
        return self.blob(body, content["mediaType"])
