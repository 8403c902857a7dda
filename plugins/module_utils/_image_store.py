# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where the Docker Engine keeps an image, and the image as a registry would offer it, straight from there.

PRIVATE to this collection. Reads the engine's own folders as root: nothing is exported or written. There are two stores:

- the classic one (C(overlay2)): layers are folders. A layer is offered as the uncompressed tar that it was (_layer_tar), so
  that the digest of the blob is the layer's diffID;
- containerd's (Docker 29's default): blobs are files named by their digest, offered as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ansible_collections.dgxspark.serving.plugins.module_utils._layer_tar import CHUNK_BYTES, LayerTar, tar_size
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandRunner, run_command

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
# Docker's type of a layer that is not compressed (moby, image/spec); both stores take it.
PLAIN_LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar"
# What `docker info` calls the containerd store's kind of driver.
_SNAPSHOTTER = "io.containerd.snapshotter.v1"
# Blobs of containerd below Docker's root folder (an engine that runs its own) and of the system's containerd.
_CONTENT = (
    "{root}/containerd/daemon/io.containerd.content.v1.content",
    "/var/lib/containerd/io.containerd.content.v1.content",
)


class ImageStoreError(Exception):
    """The engine's storage is not as expected; the message says what to do."""


class Content(Protocol):
    """A blob that can be read from any offset."""

    @property
    def size(self) -> int: ...

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class FileContent:
    path: str

    @property
    def size(self) -> int:
        return os.path.getsize(self.path)

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        with open(self.path, "rb", buffering=0) as handle:
            handle.seek(start)
            left = (self.size if stop is None else stop) - start
            while left > 0 and (chunk := handle.read(min(CHUNK_BYTES, left))):
                left -= len(chunk)
                yield chunk


@dataclass(frozen=True)
class BytesContent:
    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        yield self.content[start:stop]


@dataclass(frozen=True)
class Engine:
    """root: where Docker stores; containerd: whether images lie in containerd's store."""

    root: str
    driver: str
    containerd: bool

    @classmethod
    def ask(cls, run: CommandRunner = run_command) -> Engine:
        """Raises ImageStoreError when the engine does not answer."""
        result = run(["docker", "info", "--format", "{{json .}}"])
        try:
            info = json.loads(result.stdout)
            root = str(info["DockerRootDir"])
        except (ValueError, KeyError, TypeError) as error:
            raise ImageStoreError(
                f"The Docker Engine does not answer: {result.stderr.strip() or 'no output'}"
            ) from error
        kinds = dict(entry for entry in info.get("DriverStatus") or () if len(entry) == 2)
        return cls(root, str(info.get("Driver", "")), kinds.get("driver-type") == _SNAPSHOTTER)

    @property
    def folder(self) -> str:
        """Where the space for images is."""
        system = _CONTENT[1]
        if self.containerd and not os.path.isdir(_CONTENT[0].format(root=self.root)) and os.path.isdir(system):
            return system
        return self.root

    def blob_path(self, digest: str) -> str | None:
        """The file of a blob in containerd's store."""
        for pattern in _CONTENT:
            path = f"{pattern.format(root=self.root)}/blobs/{digest.replace(':', '/')}"
            if os.path.exists(path):
                return path
        return None


def chain_ids(diff_ids: Sequence[str]) -> list[str]:
    """Name of each layer with all below it (OCI image specification, config, Layer ChainID)."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(f"sha256:{hashlib.sha256(f'{chain[-1]} {diff_id}'.encode()).hexdigest()}" if chain else diff_id)
    return chain


def common_layers(wanted: Sequence[str], images: Sequence[Sequence[str]]) -> int:
    """How many of the lowest layers of C(wanted) some image has: an engine shares layers only from the lowest on."""
    longest = 0
    for layers in images:
        same = 0
        for mine, other in zip(wanted, layers, strict=False):
            if mine != other:
                break
            same += 1
        longest = max(longest, same)
    return longest


@dataclass
class OfferedImage:
    """An image as a registry offers it. config and layers: digests, layers the lowest first, in the order of diff_ids."""

    config: str
    diff_ids: tuple[str, ...]

    def manifest(self, known: int) -> tuple[str, bytes]:
        """(media type, manifest) for an engine that has so many of the lowest layers and does not ask for them."""
        raise NotImplementedError

    def layers(self) -> list[str]:
        raise NotImplementedError

    def blob(self, digest: str) -> Content | None:
        raise NotImplementedError


@dataclass
class ClassicImage(OfferedImage):
    """folders: of each layer in the layerdb."""

    config_bytes: bytes = b""
    overlay: str = ""
    folders: tuple[str, ...] = ()
    _sizes: dict[int, int] = field(default_factory=dict)
    _open: dict[int, LayerTar] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def find(cls, engine: Engine, image_id: str) -> ClassicImage:
        """Raises ImageStoreError when the store is not the one that is known here, or cannot be read."""
        base = f"{engine.root}/image/{engine.driver}"
        try:
            with open(f"{base}/imagedb/content/{image_id.replace(':', '/')}", "rb") as handle:
                config = handle.read()
            diff_ids = tuple(json.loads(config)["rootfs"]["diff_ids"])
            folders = tuple(f"{base}/layerdb/{chain.replace(':', '/')}" for chain in chain_ids(diff_ids))
            for folder in folders:
                os.stat(f"{folder}/tar-split.json.gz")
        except (OSError, ValueError, KeyError) as error:
            raise ImageStoreError(
                f"The layers of image {image_id[:19]} cannot be read below {base}: {error}. Known are the storage driver overlay2 "
                f"and containerd's store; this engine has {engine.driver or 'none'}. Become root, or move to one of them."
            ) from error
        return cls(image_id, diff_ids, config, f"{engine.root}/{engine.driver}", folders)

    def layers(self) -> list[str]:
        return list(self.diff_ids)

    def manifest(self, known: int) -> tuple[str, bytes]:
        layers = [
            {"mediaType": PLAIN_LAYER_TYPE, "size": self._size(number, exact=number >= known), "digest": diff_id}
            for number, diff_id in enumerate(self.diff_ids)
        ]
        config = {"mediaType": CONFIG_TYPE, "size": len(self.config_bytes), "digest": self.config}
        content = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers}
        return MANIFEST_TYPE, json.dumps(content).encode()

    def _size(self, number: int, exact: bool) -> int:
        """Of the tar; of the files, which is read faster, for a layer that nobody asks for."""
        if not exact:
            with open(f"{self.folders[number]}/size", encoding="ascii") as handle:
                return int(handle.read())
        with self._lock:
            if number not in self._sizes:
                self._sizes[number] = tar_size(f"{self.folders[number]}/tar-split.json.gz")
            return self._sizes[number]

    def blob(self, digest: str) -> Content | None:
        if digest == self.config:
            return BytesContent(self.config_bytes)
        if digest not in self.diff_ids:
            return None
        number = self.diff_ids.index(digest)
        with self._lock:
            if number not in self._open:
                with open(f"{self.folders[number]}/cache-id", encoding="ascii") as handle:
                    folder = f"{self.overlay}/{handle.read().strip()}/diff"
                self._open[number] = LayerTar(folder, f"{self.folders[number]}/tar-split.json.gz")
            return self._open[number]


@dataclass
class ContentImage(OfferedImage):
    """An image of containerd's store: its manifest as it is, its blobs as files."""

    engine: Engine = field(default_factory=lambda: Engine("", "", True))
    media_type: str = ""
    document: bytes = b""

    @classmethod
    def find(cls, engine: Engine, digest: str, platform: str) -> ContentImage:
        """digest: of the manifest or index; platform: such as linux/arm64. Raises ImageStoreError."""
        content = _document(engine, digest)
        if "manifests" in content:
            for entry in content["manifests"]:
                found = entry.get("platform") or {}
                if f"{found.get('os')}/{found.get('architecture')}" == platform and engine.blob_path(entry["digest"]):
                    return cls.find(engine, entry["digest"], platform)
            raise ImageStoreError(
                f"containerd's store has no complete image of {digest[:19]} for {platform}. Pull it again."
            )
        config = str(content["config"]["digest"])
        missing = [layer["digest"] for layer in content["layers"] if not engine.blob_path(layer["digest"])]
        if missing:
            raise ImageStoreError(
                f"containerd's store has unpacked layer {missing[0][:19]} and not kept it, so it cannot be copied. Pull the image again "
                "with discard_unpacked_layers off."
            )
        diff_ids = tuple(_document(engine, config)["rootfs"]["diff_ids"])
        with open(str(engine.blob_path(digest)), "rb") as handle:
            document = handle.read()
        return cls(config, diff_ids, engine, str(content.get("mediaType") or MANIFEST_TYPE), document)

    def layers(self) -> list[str]:
        return [str(layer["digest"]) for layer in json.loads(self.document)["layers"]]

    def manifest(self, known: int) -> tuple[str, bytes]:
        return self.media_type, self.document

    def blob(self, digest: str) -> Content | None:
        path = self.engine.blob_path(digest) if digest in (self.config, *self.layers()) else None
        return FileContent(path) if path else None


def _document(engine: Engine, digest: str) -> dict[str, Any]:
    path = engine.blob_path(digest)
    if path is None:
        raise ImageStoreError(f"containerd's store has no {digest[:19]} at {engine.folder}.")
    with open(path, "rb") as handle:
        content: dict[str, Any] = json.load(handle)
    return content


def offered(engine: Engine, image_id: str, platform: str) -> OfferedImage:
    """The image of this engine with that id. Raises ImageStoreError."""
    if engine.containerd:
        return ContentImage.find(engine, image_id, platform)
    return ClassicImage.find(engine, image_id)


def config_digest(engine: Engine, image_id: str, platform: str) -> str:
    """Digest of an image's configuration, which both stores can name; empty where it cannot be read."""
    if not engine.containerd:
        return image_id
    try:
        return ContentImage.find(engine, image_id, platform).config
    except (ImageStoreError, OSError, ValueError, KeyError):
        return ""


def note_known_layers(engine: Engine, known: Mapping[str, str]) -> None:
    """Tell the classic store the digests under which a registry offers layers that it has, so that it does not ask for them.

    known: digest in the registry to diffID. The engine notes the same after each pull (moby, distribution/metadata,
    v2_metadata_service.go); a layer that came by `docker load` has no note yet. It trusts no note blindly: the layers of an
    image are compared with its configuration after a pull.
    """
    if engine.containerd:
        return
    for digest, diff_id in known.items():
        path = f"{engine.root}/image/{engine.driver}/distribution/diffid-by-digest/{digest.replace(':', '/')}"
        if os.path.exists(path) or not os.path.isdir(f"{engine.root}/image/{engine.driver}"):
            continue
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        unfinished = f"{path}.dgxspark"
        with open(unfinished, "w", encoding="ascii") as handle:
            handle.write(diff_id)
        os.replace(unfinished, path)
