# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An image of a registry, fetched once and offered to all engines while it arrives.

PRIVATE to this collection. Each layer is written to a folder of the head as the registry sends it; the head's engine and those
of the other hosts read it from there, behind the end of what has arrived. So all hosts have the image about when the head has
it, and it comes over the internet once. What has arrived survives a broken connection, a killed run and a reboot: the next run
goes on at that byte. The folder is removed when all hosts have the image.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any

from ansible_collections.dgxspark.serving.plugins.module_utils._image_store import (
    BytesContent,
    Content,
    OfferedImage,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._image_sync import ImageSyncError
from ansible_collections.dgxspark.serving.plugins.module_utils._layer_tar import CHUNK_BYTES
from ansible_collections.dgxspark.serving.plugins.module_utils._registry_client import RegistryClient, RegistryError
from ansible_collections.dgxspark.serving.plugins.module_utils._remote_image import RemoteImage

# As the engine has it (max-concurrent-downloads).
PARALLEL_LAYERS = 3
# Between two tries after a failure: doubled each time up to the longest. Given up after so many without a byte in between.
FIRST_PAUSE_SECONDS = 1
LONGEST_PAUSE_SECONDS = 60
TRIES = 8
# Another try does not help.
_FINAL = ("REMOTE.UNAUTHORIZED", "IMAGE.ABSENT", "REMOTE.MALFORMED", "REMOTE.TLS")


class Arriving:
    """A blob that is being fetched: readers wait for what has not arrived yet."""

    def __init__(self, client: RegistryClient, descriptor: dict[str, Any], folder: str) -> None:
        self.client, self.descriptor = client, descriptor
        self.digest, self.size = str(descriptor["digest"]), int(descriptor["size"])
        self.path = os.path.join(folder, self.digest.partition(":")[2])
        self.arrived = 0
        self.failure: Exception | None = None
        self._changed = threading.Condition()

    def fetch(self, stopped: threading.Event, pause: Callable[[float], Any] = time.sleep) -> None:
        """Fetch what is missing, with patience. Never raises: readers are told."""
        tries, wait = 0, float(FIRST_PAUSE_SECONDS)
        while not stopped.is_set():
            before = self.arrived
            try:
                self._fetch_once(stopped)
                return
            except (RegistryError, OSError) as error:
                final = isinstance(error, OSError) or error.id in _FINAL
                tries, wait = (1, float(FIRST_PAUSE_SECONDS)) if self.arrived > before else (tries + 1, wait)
                if final or tries >= TRIES:
                    self._tell(failure=error)
                    return
                pause(wait)
                wait = min(wait * 2, LONGEST_PAUSE_SECONDS)

    def _fetch_once(self, stopped: threading.Event) -> None:
        with open(self.path, "ab+") as handle:
            handle.seek(0)
            digest, had = hashlib.sha256(), 0
            while chunk := handle.read(CHUNK_BYTES):
                digest.update(chunk)
                had += len(chunk)
            if had > self.size:
                handle.truncate(0)
                raise RegistryError("REMOTE.TRUNCATED", f"{self.path} is longer than the layer; it is fetched anew.")
            self._tell(arrived=had)
            if had < self.size:
                had = self._fetch_rest(handle, had, digest, stopped)
            if had == self.size and f"sha256:{digest.hexdigest()}" != self.digest:
                raise self._damaged(handle)

    def _fetch_rest(self, handle: IO[bytes], had: int, digest: Any, stopped: threading.Event) -> int:
        blob = self.client.open(self.descriptor, had, digest)
        try:
            while had < self.size and not stopped.is_set():
                chunk = blob.read(CHUNK_BYTES)
                handle.write(chunk)
                handle.flush()
                digest.update(chunk)
                had += len(chunk)
                self._tell(arrived=had)
        except RegistryError as error:
            if error.id == "REMOTE.WRONG_DIGEST":
                raise self._damaged(handle) from error
            raise
        finally:
            blob.close()
        return had

    def _damaged(self, handle: IO[bytes]) -> RegistryError:
        handle.truncate(0)
        self._tell(arrived=0)
        return RegistryError("REMOTE.WRONG_DIGEST", f"Layer {self.digest[:19]} arrived damaged; it is fetched anew.")

    def _tell(self, arrived: int | None = None, failure: Exception | None = None) -> None:
        with self._changed:
            self.arrived = self.arrived if arrived is None else arrived
            self.failure = failure
            self._changed.notify_all()

    def _wait_beyond(self, offset: int) -> int:
        """How much has arrived, as soon as it is more than C(offset)."""
        with self._changed:
            self._changed.wait_for(lambda: self.arrived > offset or self.failure)
            if self.arrived <= offset:
                raise OSError(str(self.failure))
            return self.arrived

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Raises OSError when the rest will not come."""
        stop = self.size if stop is None else stop
        with open(self.path, "rb", buffering=0) as handle:
            handle.seek(start)
            while start < stop:
                chunk = handle.read(min(CHUNK_BYTES, self._wait_beyond(start) - start, stop - start))
                start += len(chunk)
                yield chunk


@dataclass
class UpstreamImage(OfferedImage):
    """remote: as the registry has it; arriving: its layers, by digest."""

    remote: RemoteImage | None = None
    document: bytes = b""
    media_type: str = ""
    config_bytes: bytes = b""
    arriving: dict[str, Arriving] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=PARALLEL_LAYERS))

    @classmethod
    def of(cls, client: RegistryClient, remote: RemoteImage, folder: str) -> UpstreamImage:
        """folder: where layers may be kept while they arrive; older content of it is removed."""
        own = os.path.join(folder, remote.id.partition(":")[2])
        if os.path.isdir(folder):
            for name in os.listdir(folder):
                if name != os.path.basename(own):
                    shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        os.makedirs(own, mode=0o700, exist_ok=True)
        layers = [str(layer["digest"]) for layer in remote.layers]
        arriving = {}
        for layer in remote.layers:
            arriving[str(layer["digest"])] = Arriving(client, layer, own)
            # Readers may come before the first byte.
            with open(arriving[str(layer["digest"])].path, "ab"):
                pass
        diff_ids = tuple(remote.config["rootfs"]["diff_ids"])
        if len(diff_ids) != len(layers):
            raise ImageSyncError("The registry's image has another number of layers than its configuration says.")
        return cls(
            remote.id, diff_ids, remote, remote.manifest, remote.media_type, remote.config_bytes, arriving=arriving
        )

    def layers(self) -> list[str]:
        return [str(layer["digest"]) for layer in json.loads(self.document)["layers"]]

    def manifest(self, known: int) -> tuple[str, bytes]:
        return self.media_type, self.document

    def blob(self, digest: str) -> Content | None:
        """A layer begins to arrive when the first engine asks for it: what every host has is not fetched."""
        if digest == self.config:
            return BytesContent(self.config_bytes)
        arriving = self.arriving.get(digest)
        if arriving:
            with self._lock:
                if digest not in self._asked:
                    self._asked.add(digest)
                    self._pool.submit(arriving.fetch, self._stopped)
        return arriving

    @property
    def arrived(self) -> int:
        return sum(blob.arrived for blob in self.arriving.values())

    @property
    def failure(self) -> str:
        return next((str(blob.failure) for blob in self.arriving.values() if blob.failure), "")

    def stop(self) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def forget(self) -> None:
        for blob in self.arriving.values():
            shutil.rmtree(os.path.dirname(blob.path), ignore_errors=True)
