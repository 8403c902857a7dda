# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of an image, read from its layers: each holds what it adds to those below it, and what it removes from them.

PRIVATE to this collection. Links are followed within the image, never on this host.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# No file that is asked for is larger: registries and scripts have less than 1 MB.
READ_LIMIT = 16 * 1024**2
# As Linux has it (MAXSYMLINKS); a loop of links ends there.
_LINK_LIMIT = 40
FOLDER, FILE, LINK, GONE, OTHER = "folder", "file", "link", "gone", "other"


@dataclass(frozen=True)
class FileInfo:
    """target: where a symbolic link leads in the end, as an absolute path in the image; the path itself otherwise."""

    target: str
    is_folder: bool
    is_link: bool


@dataclass(frozen=True)
class Entry:
    """What a layer has at a path. target: of a link. opaque: what layers below have in this folder does not count."""

    kind: str
    target: str = ""
    opaque: bool = False


# Is given a function that reads (offset, size) of a file, and says what is in it.
Look = Callable[[Callable[[int, int], bytes]], list[str]]


class Layer(Protocol):
    """A layer is only asked about paths whose parents it does not have as links."""

    def entry(self, path: str) -> Entry | None: ...

    def names(self, folder: str) -> Iterable[str]: ...

    def read(self, path: str) -> bytes | None: ...

    def look(self, path: str, into: Look) -> list[str]: ...


@dataclass(frozen=True)
class _Place:
    """layers: those that have the folder, the uppermost first, or the one that has the file."""

    path: str
    kind: str
    layers: tuple[Layer, ...]
    target: str = ""


class LayeredFiles:
    """The files of an image. layers: the uppermost first."""

    # Whether all layers can be asked; a registry's are read little by little.
    complete = True

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self._folders: dict[str, _Place] = {}

    def info(self, path: str) -> FileInfo | None:
        place = self._resolve(path, follow=False)
        if place is None:
            return None
        if place.kind != LINK:
            return FileInfo(place.path, place.kind == FOLDER, False)
        final = self._resolve(path, follow=True)
        lexical = posixpath.normpath(posixpath.join(posixpath.dirname(place.path), place.target))
        return FileInfo(final.path if final else lexical, False, True)

    def read(self, path: str) -> bytes | None:
        """The content of a file; None when there is none or when it is larger than any file worth reading."""
        place = self._resolve(path, follow=True)
        return place.layers[0].read(place.path) if place and place.kind == FILE else None

    def look(self, path: str, into: Look) -> list[str]:
        """What is found in a file of any size by reading parts of it; nothing where that cannot be done."""
        place = self._resolve(path, follow=True)
        return place.layers[0].look(place.path, into) if place and place.kind == FILE else []

    def read_folder(self, path: str, pattern: str) -> dict[str, bytes]:
        """The files of a folder whose names match, by name."""
        return self.search(path, (pattern,))

    def search(self, folder: str, patterns: tuple[str, ...], until: str = "") -> dict[str, bytes]:
        """The files below a folder whose relative paths match one of the patterns, part by part."""
        found = {}
        for pattern in patterns:
            for name in self._names(folder, pattern):
                content = self.read(f"{folder}/{name}")
                if content is not None:
                    found[name] = content
        return found

    def list_folder(self, folder: str) -> list[str]:
        place = self._resolve(folder, follow=True)
        if place is None or place.kind != FOLDER:
            return []
        names = {name for layer in place.layers for name in layer.names(place.path)}
        return sorted(name for name in names if self._child(place, name))

    def _names(self, folder: str, pattern: str) -> list[str]:
        first, _slash, rest = pattern.partition("/")
        if first == "*" or any(sign in first for sign in "*?["):
            names = [name for name in self.list_folder(folder) if fnmatch.fnmatchcase(name, first)]
        else:
            names = [first]
        if not rest:
            return names
        return [f"{name}/{inner}" for name in names for inner in self._names(f"{folder}/{name}", rest)]

    def _resolve(self, path: str, follow: bool) -> _Place | None:
        """The place of a path, links of its folders followed, and its own if asked for. None: there is nothing."""
        parts = path.split("/")[::-1]
        place, links = self._root(), 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if place.kind != FOLDER:
                return None
            if part == "..":
                above = self._resolve(posixpath.dirname(place.path), follow=True)
                place = above or self._root()
                continue
            child = self._child(place, part)
            if child is None:
                return None
            if child.kind == LINK and (follow or any(parts)):
                links += 1
                if links > _LINK_LIMIT:
                    return None
                parts += child.target.split("/")[::-1]
                place = self._root() if child.target.startswith("/") else place
                continue
            place = child
        return place

    def _root(self) -> _Place:
        return _Place("/", FOLDER, self.layers)

    def _child(self, place: _Place, name: str) -> _Place | None:
        path = posixpath.join(place.path, name)
        known = self._folders.get(path)
        if known:
            return known
        having: list[Layer] = []
        for layer in place.layers:
            entry = layer.entry(path)
            if entry is None:
                continue
            if entry.kind != FOLDER:
                # What is no folder hides what is below it, and below a folder it does not show.
                if having or entry.kind == GONE:
                    break
                return _Place(path, entry.kind, (layer,), entry.target)
            having.append(layer)
            if entry.opaque:
                break
        if not having:
            return None
        found = _Place(path, FOLDER, tuple(having))
        if self.complete:
            self._folders[path] = found
        return found


# Attributes of folders that overlayfs sets (kernel documentation, overlayfs); user: by engines without root.
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_REDIRECT = ("trusted.overlay.redirect", "user.overlay.redirect")


class Redirected(Exception):
    """A folder of a layer has its content elsewhere, as a renamed one may: only the engine knows what is in it."""


class DiskLayer:
    """A layer as overlay2 keeps it: a folder of this host. Links are never followed: a path is asked for part by part."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def entry(self, path: str) -> Entry | None:
        place = self.folder + path
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        if _is_removal(status):
            return Entry(GONE)
        if stat.S_ISDIR(status.st_mode):
            if _attribute(place, _REDIRECT):
                raise Redirected(place)
            return Entry(FOLDER, opaque=_is_opaque(place))
        if stat.S_ISLNK(status.st_mode):
            return Entry(LINK, os.readlink(place))
        return Entry(FILE if stat.S_ISREG(status.st_mode) else OTHER)

    def names(self, folder: str) -> Iterable[str]:
        return os.listdir(self.folder + folder)

    def read(self, path: str) -> bytes | None:
        handle = os.open(self.folder + path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            return file.read() if stat.S_ISREG(status.st_mode) and status.st_size <= READ_LIMIT else None

    def look(self, path: str, into: Look) -> list[str]:
        handle = os.open(self.folder + path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return into(lambda offset, size: os.pread(handle, size, offset))
        finally:
            os.close(handle)


def _is_removal(status: os.stat_result) -> bool:
    """overlayfs: a character device 0/0 in a layer removes the name from the layers below."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(folder: str) -> bool:
    return _attribute(folder, _OPAQUE) == b"y"


def _attribute(folder: str, names: tuple[str, ...]) -> bytes:
    for name in names:
        with contextlib.suppress(OSError):
            return os.getxattr(folder, name, follow_symlinks=False)
    return b""


def disk_layers(image: dict[str, Any]) -> list[DiskLayer]:
    """The layers of an image of the Docker Engine, the uppermost first; none unless this user can read them all here."""
    driver = image.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    if driver.get("Name") != "overlay2" or "UpperDir" not in data:
        return []
    folders = [data["UpperDir"], *filter(None, data.get("LowerDir", "").split(":"))]
    readable = all(os.access(folder, os.R_OK | os.X_OK) for folder in folders)
    return [DiskLayer(folder) for folder in folders] if readable else []
