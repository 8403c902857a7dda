# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of an image, read through the Docker Engine without running anything of the image.

PRIVATE to this collection.

A container is created and never started; the engine's archive calls read from it (HEAD: does it exist, what does a link
point to, 3 to 10 ms; GET: a file or a folder as tar). They cannot list a folder without sending all that is in it, and
the folder of Python packages has gigabytes. So whoever knows a name asks for it, and only what must be searched for is
searched for: in the folders of the image's layers where this host keeps them and this user may read them (overlay2, root),
otherwise in the whole archive (0.3 GB/s on Docker 20.10), which ends as soon as nothing more can come.
"""

from __future__ import annotations

import base64
import fnmatch
import io
import json
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from docker import APIClient

PROBE_LABEL = "io.dgxspark.serving.managed"
PROBE_LABEL_VALUE = "probe"
# No file that is asked for is larger: registries and scripts have less than 1 MB.
READ_LIMIT = 16 * 1024**2
# A probe takes seconds; a container of one that is older was left by a run that was killed.
STALE_PROBE_SECONDS = 3600
# Go's os.FileMode, in which the engine gives modes.
_GO_MODE_DIR, _GO_MODE_SYMLINK = 1 << 31, 1 << 27
_OPAQUE = "trusted.overlay.opaque"


@dataclass(frozen=True)
class FileInfo:
    """target: where a symbolic link leads in the end, as an absolute path in the image; the path itself otherwise."""

    target: str
    is_folder: bool
    is_link: bool


class Files(Protocol):
    """What a probe needs to know about the files of an image. Paths are absolute, in the image."""

    def info(self, path: str) -> FileInfo | None: ...

    def read(self, path: str) -> bytes | None: ...

    def read_folder(self, path: str, pattern: str) -> dict[str, bytes]: ...

    def search(self, folder: str, patterns: tuple[str, ...], until: str = "") -> dict[str, bytes]: ...


class ImageFiles:
    """Files of an image. A context manager: at its end the container is removed."""

    def __init__(self, client: APIClient, image: dict[str, Any]) -> None:
        self.client = client
        self.image_id = image["Id"]
        self.layers = _layer_folders(image)
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

    def read(self, path: str) -> bytes | None:
        """The content of a file; None when there is none or when it is larger than any file worth reading."""
        for member, content in self._archive(path):
            if member.issym():
                info = self.info(path)
                return self.read(info.target) if info and info.target != path else None
            return content.read() if member.isfile() and member.size <= READ_LIMIT else None
        return None

    def read_folder(self, path: str, pattern: str) -> dict[str, bytes]:
        """The files of a small folder whose names match, by name."""
        info = self.info(path)
        if info is None:
            return {}
        return {
            name: content.read()
            for name, content in self._members(info.target)
            if "/" not in name and fnmatch.fnmatch(name, pattern)
        }

    def search(self, folder: str, patterns: tuple[str, ...], until: str = "") -> dict[str, bytes]:
        """The files below a folder of any size whose relative paths match one of the patterns.

        until: names that sort behind it are of no interest, so the search may end there.
        """
        info = self.info(folder)
        if info is None:
            return {}
        found = _search_layers(self.layers, info.target, patterns) if self.layers else None
        return self._search_archive(info.target, patterns, until) if found is None else found

    def _search_archive(self, folder: str, patterns: tuple[str, ...], until: str) -> dict[str, bytes]:
        found = {}
        for name, content in self._members(folder):
            # The engine walks a folder in the order of names.
            if until and name > until:
                break
            if any(_matches(name, pattern) for pattern in patterns):
                found[name] = content.read()
        return found

    def _members(self, folder: str) -> Iterator[tuple[str, IO[bytes]]]:
        """The files below a folder, with the path below it."""
        for member, content in self._archive(folder):
            name = member.name.partition("/")[2]
            if member.isfile() and name and member.size <= READ_LIMIT:
                yield name, content
            elif member.islnk():
                # The second of two hard links has no content in a tar.
                yield name, io.BytesIO(self.read(posixpath.join(folder, name)) or b"")

    def _archive(self, path: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
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
            with tarfile.open(fileobj=answer.raw, mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isfile() else None
                    yield member, content or _NOTHING


class _Nothing:
    """The content of what is no file."""

    def read(self) -> bytes:
        return b""


_NOTHING: Any = _Nothing()


def remove_stale_probes(client: APIClient, now: float) -> int:
    """Remove the containers of probes that were killed; returns how many."""
    containers = client.containers(
        all=True, filters={"label": f"{PROBE_LABEL}={PROBE_LABEL_VALUE}", "status": "created"}
    )
    stale = [container for container in containers if now - container["Created"] > STALE_PROBE_SECONDS]
    for container in stale:
        client.remove_container(container["Id"], v=True, force=True)
    return len(stale)


def _matches(name: str, pattern: str) -> bool:
    """Like a shell: * does not go beyond a slash."""
    return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)


def _layer_folders(image: dict[str, Any]) -> list[str]:
    """The folders of the layers, the uppermost first; none unless this user can read them all."""
    driver = image.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    if driver.get("Name") != "overlay2" or "UpperDir" not in data:
        return []
    folders = [data["UpperDir"], *filter(None, data.get("LowerDir", "").split(":"))]
    return folders if all(os.access(folder, os.R_OK | os.X_OK) for folder in folders) else []


class _Unclear(Exception):
    """Links in a layer: the path does not mean there what it means in the image."""


def _search_layers(layers: list[str], folder: str, patterns: tuple[str, ...]) -> dict[str, bytes] | None:
    try:
        return {
            name: path_content
            for pattern in patterns
            for name in _names(layers, folder, pattern)
            if (path_content := _read_from_layers(layers, posixpath.join(folder, name))) is not None
        }
    except (_Unclear, OSError):
        return None


def _names(layers: list[str], folder: str, pattern: str) -> list[str]:
    """Relative paths below the folder that match the pattern, part by part."""
    first, _slash, rest = pattern.partition("/")
    names = [name for name in _list(layers, folder) if fnmatch.fnmatchcase(name, first)]
    if not rest:
        return names
    return [f"{name}/{inner}" for name in names for inner in _names(layers, posixpath.join(folder, name), rest)]


def _list(layers: list[str], folder: str) -> list[str]:
    """The names in a folder: those of all layers, but those that an upper layer removes."""
    names: dict[str, bool] = {}
    for layer in layers:
        path, final = _inside(layer, folder)
        if path:
            with os.scandir(path) as entries:
                for entry in entries:
                    names.setdefault(entry.name, not _is_removal(entry.stat(follow_symlinks=False)))
        if final:
            break
    return sorted(name for name, present in names.items() if present)


def _inside(layer: str, path: str) -> tuple[str, bool]:
    """(where a folder of the image lies in a layer, whether the layers below do not count).

    An empty string when the layer does not have it.
    """
    current, final = layer, False
    for part in path.strip("/").split("/"):
        current = os.path.join(current, part)
        try:
            mode = os.lstat(current)
        except FileNotFoundError:
            return "", final
        if stat.S_ISLNK(mode.st_mode):
            raise _Unclear(current)
        if not stat.S_ISDIR(mode.st_mode):
            # Removed, or replaced by what is no folder.
            return "", True
        final = final or _is_opaque(current)
    return current, final


def _is_removal(mode: os.stat_result) -> bool:
    """overlayfs: a character device 0/0 in a layer removes the name from the layers below."""
    return stat.S_ISCHR(mode.st_mode) and mode.st_rdev == 0


def _is_opaque(folder: str) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def _read_from_layers(layers: list[str], path: str) -> bytes | None:
    folder, name = posixpath.split(path)
    for layer in layers:
        place, final = _inside(layer, folder)
        try:
            handle = os.open(os.path.join(place, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) if place else -1
        except FileNotFoundError:
            handle = -1
        except OSError as error:
            raise _Unclear(path) from error
        if handle >= 0:
            with os.fdopen(handle, "rb") as file:
                mode = os.fstat(file.fileno())
                return file.read(READ_LIMIT) if stat.S_ISREG(mode.st_mode) else None
        if final:
            break
    return None
