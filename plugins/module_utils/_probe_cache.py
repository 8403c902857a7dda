# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What was found in images, kept on the host: an image with the same id has the same content.

PRIVATE to this collection. A file per answer. Whatever is wrong with it (missing, damaged, of another version, no room, no
right) means: not cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from types import ModuleType
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._image_probe import Contents
from ansible_collections.dgxspark.serving.plugins.module_utils._import_probe import Imported
from ansible_collections.dgxspark.serving.plugins.module_utils._model_registry import Registry

HOST_CACHE_FOLDER = "/var/lib/dgxspark/cache"
_USER_CACHE_FOLDER = ".cache/dgxspark"
# About 30 kB each.
MOST_ENTRIES = 64
_SUFFIX = ".probe.json"


def default_folder() -> str:
    """The host's folder for root, one of their own for other users."""
    if os.geteuid() == 0:
        return HOST_CACHE_FOLDER
    return os.path.join(os.path.expanduser("~"), _USER_CACHE_FOLDER)


def fingerprint(modules: Iterable[ModuleType]) -> str:
    """Of the source of the modules that find out what is kept: another version of them is another cache."""
    digest = hashlib.sha256()
    for module in modules:
        loader: Any = module.__loader__
        # An AnsiballZ is a zip: only the loader can read its files.
        digest.update(loader.get_data(module.__file__))
    return digest.hexdigest()


class ProbeCache:
    """folder: empty to keep nothing. writable: false to only read (check mode)."""

    def __init__(self, folder: str, version: str, writable: bool = True) -> None:
        self.folder, self.version, self.writable = folder, version, writable

    def get(self, key: dict[str, Any]) -> Contents | None:
        if not self.folder:
            return None
        path = self._path(key)
        try:
            with open(path, encoding="utf-8") as handle:
                status = os.fstat(handle.fileno())
                kept = json.load(handle)
            # Somebody else's file says what they like.
            if status.st_uid != os.geteuid() or kept["key"] != self._full(key):
                return None
            contents = _contents(kept["contents"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return contents

    def put(self, key: dict[str, Any], contents: Contents) -> None:
        if not self.folder or not self.writable:
            return
        with contextlib.suppress(OSError):
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            status = os.lstat(self.folder)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return
            self._write(self._path(key), {"key": self._full(key), "contents": _plain(contents)})
            self._forget_oldest()

    def _full(self, key: dict[str, Any]) -> dict[str, Any]:
        return {**key, "version": self.version}

    def _path(self, key: dict[str, Any]) -> str:
        text = json.dumps(self._full(key), sort_keys=True)
        return os.path.join(self.folder, hashlib.sha256(text.encode()).hexdigest()[:40] + _SUFFIX)

    def _write(self, path: str, content: dict[str, Any]) -> None:
        """Another run sees the old file or the whole new one."""
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=_SUFFIX)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _forget_oldest(self) -> None:
        """Those used last stay. Another run may be doing the same; what a killed run left is a file like the others."""
        ages = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX):
                    with contextlib.suppress(OSError):
                        ages.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
        for _age, path in sorted(ages, reverse=True)[MOST_ENTRIES:]:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _plain(contents: Contents) -> dict[str, Any]:
    plain = asdict(contents)
    if contents.model_types is not None:
        plain["model_types"] = sorted(contents.model_types)
    return plain


def _contents(plain: dict[str, Any]) -> Contents:
    registry, types, imported = plain.pop("registry"), plain.pop("model_types"), plain.pop("imported")
    contents = Contents(**plain)
    contents.registry = Registry(**registry) if registry is not None else None
    contents.imported = Imported(**imported) if imported is not None else None
    contents.model_types = set(types) if types is not None else None
    return contents
