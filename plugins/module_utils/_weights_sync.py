# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The same complete model on every host: the head has it or gets it, the others fetch from the head what differs.

PRIVATE to this collection.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._hub_cache import mount_of
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import (
    NOT_OF_THE_MODEL,
    ModelFolder,
    ModelFolderError,
    examine,
    make_readable,
    room_for,
    unreadable,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import (
    OFFER_WAIT_SECONDS,
    RendezvousError,
    Source,
    Target,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._weights_copy import (
    Entry,
    arrived_bytes,
    copy,
    entries_of,
    rsync_daemon,
)

_CHUNK = 8 * 1024**2
_HASHERS = 4
# Between two looks at what the head has finished meanwhile.
POLL_SECONDS = 2
# huggingface_hub, _local_folder.py: the second line of a file's notes is its etag, the SHA-256 of a large file.
_NOTES = ".cache/huggingface/download/{name}.metadata"
_SHA256_LENGTH = 64


@dataclass(frozen=True)
class Staged:
    """bytes_to_copy: what differs; bytes_received: over the network, in copy_seconds; repaired: what was made readable for the container."""

    changed: bool
    bytes_to_copy: int
    model: ModelFolder | None
    bytes_received: int = 0
    repaired: tuple[str, ...] = ()
    copy_seconds: float = 0.0


def checksums(folder: str, model: ModelFolder) -> dict[str, str]:
    """SHA-256 of each file."""

    def of(name: str) -> str:
        digest = hashlib.sha256()
        with open(os.path.join(folder, name), "rb", buffering=0) as handle:
            while chunk := handle.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    with ThreadPoolExecutor(max_workers=_HASHERS) as pool:
        return dict(zip(model.files, pool.map(of, model.files), strict=True))


def hub_checksums(folder: str, model: ModelFolder) -> dict[str, str]:
    """The hub's own SHA-256 of files, where its tool has left a note: the names of blobs, or notes beside a plain folder."""
    found = {}
    for name in model.files:
        path = os.path.join(folder, name)
        known = os.path.basename(os.readlink(path)) if os.path.islink(path) else ""
        if not known:
            try:
                with open(os.path.join(folder, _NOTES.format(name=name)), encoding="utf-8") as handle:
                    known = handle.read().splitlines()[1]
            except (OSError, IndexError):
                known = ""
        if len(known) == _SHA256_LENGTH:
            found[name] = known
    return found


def verified(folder: str, model: ModelFolder, wanted: Mapping[str, str] | None = None) -> dict[str, str]:
    """The checksums of a folder, after they were compared. wanted: the head's; without them the hub's. Raises ModelFolderError."""
    found = checksums(folder, model)
    expected = hub_checksums(folder, model) if wanted is None else wanted
    wrong = sorted(name for name, known in expected.items() if found.get(name) != known)
    if wrong:
        whose = "the hub" if wanted is None else "the head"
        raise ModelFolderError(
            f"{folder}/{wrong[0]} is not what {whose} has (SHA-256), {len(wrong)} file(s) in all: {', '.join(wrong[:5])}. "
            "Remove what is damaged and run again."
        )
    return found


def open_to_container(folder: str, check_mode: bool) -> tuple[str, ...]:
    """Make what the engine's container could not read readable; returns the paths."""
    found = unreadable(folder)
    if not check_mode:
        make_readable(found)
    return tuple(item.path for item in found)


class Offering:
    """What the head has to offer at the moment: finished files while it still gets others, at the end all of it.

    total: bytes of the whole model, 0 while it is not known.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.mount = folder, mount_of(folder)
        self.total = 0
        self.failed = ""
        self._model: ModelFolder | None = None
        self._sums: Mapping[str, str] = {}

    def complete(self, model: ModelFolder, sums: Mapping[str, str]) -> None:
        self._model, self._sums, self.total = model, sums, model.size or self.total

    def as_json(self) -> bytes:
        if self.failed:
            return json.dumps({"failed": self.failed}).encode()
        model = self._model
        content = {
            "complete": model is not None,
            "digest": model.digest if model else "",
            "total": self.total,
            "entries": [asdict(entry) for entry in entries_of(self.mount, self.folder)],
            "sums": dict(self._sums),
        }
        return json.dumps(content).encode()


@dataclass(frozen=True)
class Ways:
    """How the hosts reach each other. workers: name to address; ports: of the reports, of rsync."""

    address: str
    ports: tuple[int, int]
    token: str
    workers: Mapping[str, str]


def serve(
    folder: str, ways: Ways, obtain: Callable[[Offering], tuple[ModelFolder, Mapping[str, str]]]
) -> tuple[ModelFolder, dict[str, Any]]:
    """On the head: have the model (C(obtain) returns it with its checksums) and offer it until every worker has reported.

    What is finished is offered while the rest is still on its way. Raises what C(obtain) raises, after the workers know.
    """
    offering = Offering(folder)
    if not ways.workers:
        return obtain(offering)[0], {}
    with (
        rsync_daemon(offering.mount, ways.address, ways.ports[1], ways.token, list(ways.workers.values())),
        Source(ways.address, ways.ports[0], ways.token, {"manifest": lambda: iter([offering.as_json()])}) as source,
    ):
        try:
            model, sums = obtain(offering)
        except ModelFolderError as error:
            offering.failed = str(error)
            with suppress(RendezvousError):
                source.wait_for(list(ways.workers), OFFER_WAIT_SECONDS)
            raise
        offering.complete(model, sums)
        source.heard()
        return model, source.wait_for(list(ways.workers))


def fetch(folder: str, target: Target, rsync_port: int, token: str, check_mode: bool, progress: Progress) -> Staged:
    """On a worker: have the head's model, complete. Raises ModelFolderError when it is not afterwards."""
    task = _Task(folder, mount_of(folder), target, rsync_port, token, check_mode, progress)
    manifest = json.loads(target.fetch_manifest())
    end_reports = target.keep_reporting(lambda: {"done_bytes": progress.done, "total_bytes": progress.total})
    try:
        staged = _fetch(task, manifest)
    except ModelFolderError as error:
        target.report(done=True, failed=str(error))
        raise
    finally:
        end_reports()
    target.report(done=True, changed=staged.changed, bytes=staged.bytes_received)
    return staged


@dataclass(frozen=True)
class _Task:
    folder: str
    mount: str
    target: Target
    rsync_port: int
    token: str
    check_mode: bool
    progress: Progress


def _fetch(task: _Task, manifest: dict[str, Any]) -> Staged:
    received = copied = 0
    copying = 0.0
    damaged: set[str] = set()
    while True:
        present = _present(task.folder)
        if manifest["complete"] and present and present.digest == manifest["digest"]:
            damaged = _damaged(task.folder, present, manifest["sums"], task.progress)
            if not damaged:
                repaired = open_to_container(task.mount, task.check_mode)
                return Staged(bool(copied or repaired), copied, present, received, repaired, copying)
        entries = [Entry(**entry) for entry in manifest["entries"]]
        wanted = [
            entry
            for entry in entries
            if not entry.is_at(task.mount) or os.path.realpath(os.path.join(task.mount, entry.path)) in damaged
        ]
        to_copy = sum(entry.size for entry in wanted)
        if task.check_mode:
            # In check mode the head may not have the model yet: then it only knows how large it is.
            return Staged(True, to_copy if manifest["digest"] else manifest["total"], None)
        began = time.monotonic()
        received += _copy(task, wanted, damaged, manifest["total"])
        copying += time.monotonic() - began
        copied += to_copy
        if manifest["complete"]:
            remove_others(task.mount, task.folder, entries)
            return replace(_after_copy(task, manifest, copied, received), copy_seconds=copying)
        if not wanted:
            task.progress.enter("waiting for the head's download", manifest["total"])
            time.sleep(POLL_SECONDS)
        manifest = json.loads(task.target.fetch_manifest())


def _copy(task: _Task, wanted: Sequence[Entry], damaged: set[str], total: int) -> int:
    if not wanted:
        return 0
    to_copy = sum(entry.size for entry in wanted)
    there = arrived_bytes(task.mount, wanted)
    room_for(task.mount, max(to_copy, total - _held(task.folder)), there)
    for path in damaged:
        # Of the same size and time as the head's: rsync would leave it.
        os.unlink(path)
    task.progress.enter("weights", to_copy, lambda: min(arrived_bytes(task.mount, wanted), to_copy))
    return copy(task.mount, task.target.address, task.rsync_port, task.token, wanted)


def _after_copy(task: _Task, manifest: Mapping[str, Any], copied: int, received: int) -> Staged:
    model = examine(task.folder)
    if model.digest != manifest["digest"]:
        raise ModelFolderError(f"{task.folder} was copied, but differs from the head's afterwards.")
    if manifest["sums"]:
        task.progress.enter("comparing checksums")
        verified(task.folder, model, manifest["sums"])
    return Staged(True, copied, model, received, open_to_container(task.mount, check_mode=False))


def _held(folder: str) -> int:
    """Bytes of complete files that are there."""
    total = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in NOT_OF_THE_MODEL]
        total += sum(os.path.getsize(path) for name in names if os.path.exists(path := os.path.join(parent, name)))
    return total


def _present(folder: str) -> ModelFolder | None:
    try:
        return examine(folder)
    except ModelFolderError:
        return None


def _damaged(folder: str, model: ModelFolder, sums: Mapping[str, str], progress: Progress) -> set[str]:
    """Real paths of files whose content differs from the head's, where checksums were asked for."""
    if not sums:
        return set()
    progress.enter("comparing checksums")
    found = checksums(folder, model)
    return {os.path.realpath(os.path.join(folder, name)) for name, known in sums.items() if found.get(name) != known}


def remove_others(mount: str, folder: str, entries: Sequence[Entry]) -> None:
    """Remove from a plain folder what the head does not have. A hub cache holds other revisions, which stay."""
    if mount != folder.rstrip("/"):
        return
    wanted = {entry.path for entry in entries}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in NOT_OF_THE_MODEL]
        for name in names:
            path = os.path.join(parent, name)
            if os.path.relpath(path, folder) not in wanted:
                os.unlink(path)
