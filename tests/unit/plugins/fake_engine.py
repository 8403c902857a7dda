# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Docker Engine with images in memory, for what reads files of images."""

from __future__ import annotations

import base64
import io
import json
import posixpath
import tarfile
from types import TracebackType
from typing import Any

import docker
import requests

GO_MODE_DIR, GO_MODE_SYMLINK = 1 << 31, 1 << 27


class Link(str):
    """A symbolic link; the text is its target."""

    __slots__ = ()


class HardLink(Link):
    """A second name of a file. The engine reads it as the file, but in a tar of a folder it has no content."""

    __slots__ = ()


class Answer:
    def __init__(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.status_code = status
        self.headers = headers or {}
        self.raw = io.BytesIO(body)

    def raise_for_status(self) -> None:
        if self.status_code >= 400:
            raise requests.HTTPError(f"{self.status_code}")

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class FakeImage:
    """files: content by absolute path; a Link is a symbolic link."""

    def __init__(self, files: dict[str, bytes | str], env: list[str] | None = None, **inspect: Any) -> None:
        self.files = {
            path: content if isinstance(content, (Link, bytes)) else content.encode() for path, content in files.items()
        }
        config = {"Env": env or ["PATH=/usr/local/bin:/usr/bin:/bin"], "Entrypoint": None, "Labels": None}
        self.inspect = {
            "Id": f"sha256:{id(self):064x}",
            "RepoDigests": [],
            "Os": "linux",
            "Architecture": "arm64",
            "Config": config,
        }
        self.inspect.update(inspect)

    def resolve(self, path: str) -> str:
        for _round in range(10):
            target = self.files.get(path)
            if not isinstance(target, Link):
                break
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return path

    def is_folder(self, path: str) -> bool:
        return any(name.startswith(path.rstrip("/") + "/") for name in self.files)


class FakeEngine:
    """As much of docker.APIClient as reading files of images takes."""

    base_url = "http+docker://localhost"
    api_version = "1.41"
    timeout = 60

    def __init__(self, images: dict[str, FakeImage], architecture: str = "arm64") -> None:
        self.held = images
        self.architecture = architecture
        self.created: dict[str, dict[str, Any]] = {}
        self.removed: list[str] = []
        self.left_behind: list[dict[str, Any]] = []
        self.streamed: list[str] = []

    def version(self) -> dict[str, str]:
        return {"Os": "linux", "Arch": self.architecture}

    def images(self) -> list[dict[str, Any]]:
        return [{"RepoTags": [name if ":" in name else f"{name}:latest"]} for name in self.held]

    def inspect_image(self, name: str) -> dict[str, Any]:
        if name not in self.held:
            raise docker.errors.ImageNotFound(f"no such image: {name}")
        return self.held[name].inspect

    def create_host_config(self, **options: Any) -> dict[str, Any]:
        return options

    def create_container(self, image: str, **options: Any) -> dict[str, str]:
        found = next(candidate for candidate in self.held.values() if candidate.inspect["Id"] == image)
        identity = f"container-{len(self.created)}"
        self.created[identity] = {"image": found, **options}
        return {"Id": identity}

    def remove_container(self, container: str, v: bool = False, force: bool = False) -> None:
        assert v and force
        self.removed.append(container)

    def containers(self, **options: Any) -> list[dict[str, Any]]:
        assert options["filters"] == {"label": "io.dgxspark.serving.managed=probe"}
        return self.left_behind

    def _find(self, url: str) -> FakeImage:
        prefix = f"{self.base_url}/v{self.api_version}/containers/"
        assert url.startswith(prefix) and url.endswith("/archive")
        identity = url.removeprefix(prefix).removesuffix("/archive")
        assert identity not in self.removed
        found: FakeImage = self.created[identity]["image"]
        return found

    def head(self, url: str, params: dict[str, str], timeout: float) -> Answer:
        image, path = self._find(url), params["path"]
        if path not in image.files and not image.is_folder(path):
            return Answer(404)
        mode = (
            GO_MODE_DIR if image.is_folder(path) else GO_MODE_SYMLINK if isinstance(image.files[path], Link) else 0o644
        )
        about = {"mode": mode, "linkTarget": image.resolve(path) if mode == GO_MODE_SYMLINK else ""}
        return Answer(200, {"X-Docker-Container-Path-Stat": base64.b64encode(json.dumps(about).encode()).decode()})

    def get(self, url: str, params: dict[str, str], headers: dict[str, str], stream: bool, timeout: float) -> Answer:
        assert stream and headers == {"Accept-Encoding": "identity"}
        image, path = self._find(url), params["path"]
        self.streamed.append(path)
        names = [name for name in sorted(image.files) if name == path or name.startswith(path.rstrip("/") + "/")]
        if not names:
            return Answer(404)
        body = io.BytesIO()
        with tarfile.open(fileobj=body, mode="w") as archive:
            for name in names:
                member = tarfile.TarInfo(posixpath.relpath(name, posixpath.dirname(path)))
                content = image.files[name]
                if isinstance(content, HardLink) and name == path:
                    content = image.files[content]
                if isinstance(content, HardLink):
                    member.type, member.linkname = tarfile.LNKTYPE, posixpath.relpath(content, posixpath.dirname(path))
                    archive.addfile(member)
                elif isinstance(content, Link):
                    member.type, member.linkname = tarfile.SYMTYPE, str(content)
                    archive.addfile(member)
                else:
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        return Answer(200, body=body.getvalue())
