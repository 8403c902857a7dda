# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of an image of the Docker Engine, read without running anything of the image.

PRIVATE to this collection.

Where this host keeps the layers as folders that this user may read (overlay2, root), they are read there: a probe takes tens
of milliseconds and no container. Otherwise a container is created and never started, and the engine's archive calls read from
it (HEAD: does it exist, what does a link point to, 3 to 10 ms; GET: a file or a folder as tar, 45 ms on Docker 20.10). They
cannot list a folder without sending all that is in it, and the folder of Python packages has gigabytes. So whoever knows a
name asks for it, and only what must be searched for is searched for, in the whole archive (0.3 GB/s on Docker 20.10), which
ends as soon as nothing more can come.
"""

from __future__ import annotations

import base64
import fnmatch
import json
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ansible_collections.dgxspark.serving.plugins.module_utils import _tar_stream as tar_stream
from ansible_collections.dgxspark.serving.plugins.module_utils._image_layers import (
    READ_LIMIT,
    FileInfo,
    LayeredFiles,
    Look,
    disk_layers,
)

if TYPE_CHECKING:
    from docker import APIClient

PROBE_LABEL = "io.dgxspark.serving.managed"
PROBE_LABEL_VALUE = "probe"
# A probe takes seconds; a container of one that is older was left by a run that was killed.
STALE_PROBE_SECONDS = 3600
# Go's os.FileMode, in which the engine gives modes.
_GO_MODE_DIR, _GO_MODE_SYMLINK = 1 << 31, 1 << 27
# The engine follows links itself; more than one round is an image that changes under our hands.
_LINK_LIMIT = 3


class Files(Protocol):
    """What a probe needs to know about the files of an image. Paths are absolute, in the image."""

    # False while there are layers that have not been read yet: what is not found may still be there.
    complete: bool

    def info(self, path: str) -> FileInfo | None: ...

    def read(self, path: str) -> bytes | None: ...

    def look(self, path: str, into: Look) -> list[str]: ...

    def read_folder(self, path: str, pattern: str) -> dict[str, bytes]: ...

    def search(self, folder: str, patterns: tuple[str, ...], until: str = "") -> dict[str, bytes]: ...

    def list_folder(self, folder: str) -> list[str]: ...


class ImageFiles:
    """Files of an image, through the engine. A context manager: at its end the container is removed."""

    complete = True

    def __init__(self, client: APIClient, image_id: str) -> None:
        self.client = client
        self.image_id = image_id
        self.container = ""

    def __enter__(self) -> ImageFiles:
        # The command is never run, but an image without one would be refused. The network none needs no setup.
        created = self.client.create_container(
            self.image_id,
            command=["true"],
            labels={PROBE_LABEL: PROBE_LABEL_VALUE},
            host_config=self.client.create_host_config(network_mode="none"),
        )
        self.container = created["Id"]
        return self

    def __exit__(self, *_exception: object) -> None:
        # v: with the anonymous volumes that the image declares.
        self.client.remove_container(self.container, v=True, force=True)

    def info(self, path: str) -> FileInfo | None:
        answer = self.client.head(
            f"{self.client.base_url}/v{self.client.api_version}/containers/{self.container}/archive",
            params={"path": path},
            timeout=self.client.timeout,
        )
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        found = json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
        is_link = bool(found["mode"] & _GO_MODE_SYMLINK)
        return FileInfo(found["linkTarget"] if is_link else path, bool(found["mode"] & _GO_MODE_DIR), is_link)

    def read(self, path: str, links: int = 0) -> bytes | None:
        """The content of a file; None when there is none or when it is larger than any file worth reading."""
        for member in self._archive(path):
            if member.kind == tar_stream.LINK:
                info = self.info(path) if links < _LINK_LIMIT else None
                return self.read(info.target, links + 1) if info and info.target != path else None
            return member.read() if member.kind == tar_stream.FILE and member.size <= READ_LIMIT else None
        return None

    def read_folder(self, path: str, pattern: str) -> dict[str, bytes]:
        """The files of a small folder whose names match, by name."""
        return self.search(path, (pattern,))

    def search(self, folder: str, patterns: tuple[str, ...], until: str = "") -> dict[str, bytes]:
        """The files below a folder of any size whose relative paths match one of the patterns.

        until: names that sort behind it are of no interest, so the search may end there.
        """
        info = self.info(folder)
        found: dict[str, bytes] = {}
        for member in self._archive(info.target) if info else ():
            name = member.name.partition("/")[2]
            # The engine walks a folder in the order of names.
            if until and name > until:
                break
            if not any(_matches(name, pattern) for pattern in patterns):
                continue
            if member.kind == tar_stream.FILE and member.size <= READ_LIMIT:
                found[name] = member.read()
            elif member.kind == tar_stream.HARD_LINK:
                # The second of two hard links has no content in a tar.
                found[name] = self.read(posixpath.join(info.target if info else "", name)) or b""
        return found

    def look(self, path: str, into: Look) -> list[str]:
        """Not offered: the engine would send the whole file."""
        return []

    def list_folder(self, folder: str) -> list[str]:
        """Not offered: the engine would send all that is in it."""
        return []

    def _archive(self, path: str) -> Iterator[tar_stream.Member]:
        answer = self.client.get(
            f"{self.client.base_url}/v{self.client.api_version}/containers/{self.container}/archive",
            params={"path": path},
            # Otherwise the engine compresses, at a fifth of the speed.
            headers={"Accept-Encoding": "identity"},
            stream=True,
            timeout=self.client.timeout,
        )
        with answer:
            if answer.status_code == 404:
                return
            answer.raise_for_status()
            yield from tar_stream.members(answer.raw)


def remove_stale_probes(client: APIClient, now: float) -> int:
    """Remove the containers of probes that were killed; returns how many."""
    containers = client.containers(all=True, filters={"label": f"{PROBE_LABEL}={PROBE_LABEL_VALUE}"})
    stale = [container for container in containers if now - container["Created"] > STALE_PROBE_SECONDS]
    for container in stale:
        client.remove_container(container["Id"], v=True, force=True)
    return len(stale)


def _matches(name: str, pattern: str) -> bool:
    """Like a shell: * does not go beyond a slash."""
    return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)


@contextmanager
def open_image(client: APIClient, image: dict[str, Any]) -> Iterator[Files]:
    """The files of an image of the engine, by the fastest way that is open to this user."""
    layers = disk_layers(image)
    if layers:
        yield LayeredFiles(layers)
        return
    with ImageFiles(client, image["Id"]) as files:
        yield files
