# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import tarfile
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.dgxspark.serving.plugins.module_utils._host_survey import LIBRARY_DIGEST_FILE

CACHE_FOLDER = Path("~/.cache/dgxspark/libraries").expanduser()
# Only what runs on every architecture travels: the control node may be another machine than a Spark.
PURE_SUFFIXES = (".py", ".pem", ".typed")
# Packages that are of no use without their compiled part; who needs them does without.
COMPILED = ("hf-xet",)


def package_files(distribution: str) -> list[tuple[str, Path]]:
    """(path below the library folder, file on the control node) of the pure Python files of an installed distribution."""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise AnsibleActionFail(
            f"The control node lacks the Python package {distribution}, which the hosts get from it. "
            "Install it next to ansible-core: pip install docker requests"
        ) from error
    files = []
    for entry in found.files or ():
        if entry.suffix in PURE_SUFFIXES and ".." not in entry.parts and "__pycache__" not in entry.parts:
            files.append((str(entry), Path(str(entry.locate()))))
    if not files:
        raise AnsibleActionFail(
            f"The Python package {distribution} on the control node has no list of files; install it with pip."
        )
    return sorted(files)


def with_dependencies(distributions: list[str]) -> list[str]:
    """The distributions and what they need to run, as far as it is installed. What is compiled has a pure twin or is optional."""
    # ansible-core needs it itself; a test that only imports this file may lack it.
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, None] = {}
    waiting = list(distributions)
    while waiting:
        name = canonicalize_name(waiting.pop(0))
        if name in found or name in COMPILED:
            continue
        found[name] = None
        try:
            needed = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
        except importlib.metadata.PackageNotFoundError:
            if name in map(canonicalize_name, distributions):
                continue
            del found[name]
            continue
        waiting += [entry.name for entry in needed if not entry.marker or entry.marker.evaluate({"extra": ""})]
    return list(found)


class ActionModule(ActionBase):
    """Packs Python libraries of the control node into an archive for the hosts. Runs on the control node only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("distributions", "dependencies"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        names = [str(name) for name in self._task.args["distributions"]]
        if self._task.args.get("dependencies"):
            names = with_dependencies(names)
        files = [entry for name in names for entry in package_files(name)]
        digest = hashlib.sha256()
        for name, path in files:
            digest.update(name.encode() + b"\0" + path.read_bytes())
        identity = digest.hexdigest()
        archive = CACHE_FOLDER / f"{identity}.tar.gz"
        if not archive.exists():
            CACHE_FOLDER.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = archive.with_suffix(f".{os.getpid()}")
            with tarfile.open(partial, "w:gz") as bundle:
                for name, path in files:
                    self._add(bundle, name, path.read_bytes())
                self._add(bundle, LIBRARY_DIGEST_FILE, identity.encode())
            os.replace(partial, archive)
        return {"changed": False, "path": str(archive), "digest": identity}

    @staticmethod
    def _add(bundle: tarfile.TarFile, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o644
        bundle.addfile(member, io.BytesIO(content))
