# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of an image that lies in a registry, read from its layers without pulling it.

PRIVATE to this collection.

A layer is a compressed tar without a table of contents: it can only be read from its start. So the newest layer is read
first, as far as the answer needs it, then the next. What was passed is remembered by name, and by content where a probe may
ask for it; if it asks for something else that was passed, the layer is read once more.
"""

from __future__ import annotations

import posixpath
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _tar_stream as tar_stream
from ansible_collections.dgxspark.serving.plugins.module_utils._image_layers import (
    FILE,
    FOLDER,
    GONE,
    LINK,
    OTHER,
    READ_LIMIT,
    Entry,
    LayeredFiles,
    Look,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._platform import Platform
from ansible_collections.dgxspark.serving.plugins.module_utils._registry_client import (
    Blob,
    Document,
    RegistryClient,
    RegistryError,
)

# Compressed bytes between two looks at what is known so far.
STEP_BYTES = 8 * 1024**2
_CHUNK = 1 << 16
# An image with CUDA, torch and vLLM has about 150,000 files; a stream of names without end must not fill the memory.
_ENTRY_LIMIT = 2_000_000
_KEPT_LIMIT = 256 * 1024**2
# Whiteouts of the OCI image specification.
_REMOVED, _OPAQUE = ".wh.", ".wh..wh..opq"
# What a probe reads: kept when it passes.
_KEPT = re.compile(
    r"/(?:bin/(?:vllm|sglang)|pyvenv\.cfg|\.?nccl\.conf|nccl\.h|patchlevel\.h|_?version\.py|_build_meta\.py"
    r"|var/lib/dpkg/status|(?:transformers|triton)/__init__\.py|auto/(?:configuration_auto|auto_mappings)\.py"
    r"|[^/]*\.pth|__editable__[^/]*|[^/]+\.(?:dist|egg)-info/(?:entry_points\.txt|WHEEL|INSTALLER|METADATA|direct_url\.json)"
    r"|models/registry\.py|transformers_utils/config\.py|(?:reasoning|tool_parsers)/[^/]+\.py"
    r"|srt/(?:models|configs|parser|function_call)/[^/]+\.py|srt/[^/]+\.py)$"
)
_ENGINE = re.compile(r"/(?:vllm|sglang)/__init__\.py$|/__editable__[^/]*$|\.pth$")
_UNKNOWN_PLATFORM = "unknown"
_ATTESTATION = "vnd.docker.reference.type"


@dataclass(frozen=True)
class RemoteImage:
    """config: of the image, with id (its digest); size: of its layers, compressed; manifest, config_bytes: as they were sent."""

    config: dict[str, Any]
    id: str
    digest: str
    layers: tuple[dict[str, Any], ...]
    media_type: str = ""
    manifest: bytes = b""
    config_bytes: bytes = b""

    @property
    def size(self) -> int:
        return sum(int(layer.get("size") or 0) for layer in self.layers)

    @property
    def platform(self) -> Platform:
        return Platform.of(
            str(self.config.get("os") or "linux"),
            str(self.config.get("architecture") or ""),
            str(self.config.get("variant") or ""),
        )


class PlatformMissing(Exception):
    """The registry has the image for other platforms only."""

    def __init__(self, platforms: list[Platform]) -> None:
        super().__init__(", ".join(map(str, platforms)))
        self.platforms = platforms


def find_image(client: RegistryClient, platform: Platform) -> RemoteImage:
    """The image for a platform. Raises RegistryError and PlatformMissing."""
    document = client.manifest()
    digest = document.digest
    if document.is_index:
        document = client.manifest(_choose(document, platform))
        if document.is_index:
            # An index in an index is allowed, and made by nobody for images.
            document = client.manifest(_choose(document, platform))
    return _image(client, document, digest)


def _image(client: RegistryClient, manifest: Document, digest: str) -> RemoteImage:
    layers, config = manifest.content.get("layers"), manifest.content.get("config")
    if (
        not isinstance(layers, list)
        or not isinstance(config, dict)
        or not all(isinstance(item, dict) for item in layers)
    ):
        raise RegistryError(
            "REMOTE.MALFORMED",
            f"{client.reference.text} is no image in a format that is known here (media type {manifest.media_type!r}).",
            "Push it again with a current tool.",
        )
    found = client.config(config)
    return RemoteImage(
        found.content, found.digest, digest, tuple(layers), manifest.media_type, manifest.body, found.body
    )


def platforms_of(index: Document) -> list[tuple[Platform, str]]:
    """(platform, digest) of the images of an index. Attestations, which BuildKit adds, are none."""
    found = []
    for entry in index.content.get("manifests") or []:
        platform = (entry.get("platform") if isinstance(entry, dict) else None) or {}
        attested = isinstance(entry, dict) and _ATTESTATION in (entry.get("annotations") or {})
        name = str(platform.get("architecture") or _UNKNOWN_PLATFORM)
        if attested or name == _UNKNOWN_PLATFORM or not isinstance(entry.get("digest"), str):
            continue
        found.append(
            (Platform.of(str(platform.get("os") or ""), name, str(platform.get("variant") or "")), entry["digest"])
        )
    return found


def _choose(index: Document, wanted: Platform) -> str:
    platforms = platforms_of(index)
    for platform, digest in platforms:
        if platform == wanted:
            return digest
    raise PlatformMissing([platform for platform, _digest in platforms])


class _Unpacked:
    """A blob without its compression. position: of the blob, in bytes read."""

    def __init__(self, blob: Blob, media_type: str) -> None:
        self.blob, self.position = blob, 0
        self._buffer, self._ended = bytearray(), False
        self._start = True
        self._zip: Any = None
        self._media_type = media_type

    def read(self, size: int, /) -> bytes:
        while len(self._buffer) < size and not self._ended:
            self._more()
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        return part

    def _more(self) -> None:
        pending = getattr(self._zip, "unconsumed_tail", b"")
        part = pending or self.blob.read(_CHUNK)
        if not pending:
            self.position += len(part)
        if self._start and part:
            self._start = False
            self._zip = self._decompressor(part[:4])
        if not part:
            self._ended = True
            if not getattr(self._zip, "eof", True):
                raise tar_stream.TarError("its compressed stream is cut off")
        elif self._zip is None:
            self._buffer += part
        else:
            # Bounded, as a few bytes may stand for gigabytes of zeros.
            self._buffer += self._zip.decompress(part, 1 << 20)
            if getattr(self._zip, "eof", False) and not isinstance(self._zip, _Rest):
                self._next_member()

    def _next_member(self) -> None:
        """gzip: further members may follow, as pigz and stargz write them."""
        rest = self._zip.unused_data
        if rest.strip(b"\0"):
            self._zip = zlib.decompressobj(31)
            self._buffer += self._zip.decompress(rest, 1 << 20)
            return
        # Read to its end: only then its digest is known to be right.
        self._zip = _Rest()

    def _decompressor(self, start: bytes) -> Any:
        if start.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(31)
        if start == b"\x28\xb5\x2f\xfd":
            return _zstd_decompressor()
        return None


class _Rest:
    """What follows the end of the compressed stream is of no interest."""

    unconsumed_tail, eof = b"", True

    @staticmethod
    def decompress(part: bytes, limit: int) -> bytes:
        return b""


def _zstd_decompressor() -> Any:
    try:
        # Python 3.14
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise RegistryError(
            "REMOTE.COMPRESSION",
            "A layer of the image is compressed with zstd, which this host's Python cannot read (3.14 can).",
            "Pull the image and probe it with source: engine.",
        ) from None
    return zstd.ZstdDecompressor()


class StreamedLayer:
    """A layer that is read step by step. complete: to its end."""

    def __init__(self, client: RegistryClient, descriptor: dict[str, Any]) -> None:
        self.client, self.descriptor = client, descriptor
        self.complete = False
        self.entries: dict[str, Entry] = {"/": Entry(FOLDER)}
        self.children: dict[str, set[str]] = {}
        # A file has been passed that belongs to an engine.
        self.engine_seen = False
        self._kept: dict[str, bytes] = {}
        self._kept_size = 0
        self._hard_links: dict[str, str] = {}
        self._stream: _Unpacked | None = None
        self._members: Iterator[tar_stream.Member] = iter(())

    def entry(self, path: str) -> Entry | None:
        return self.entries.get(path)

    def names(self, folder: str) -> Iterable[str]:
        return self.children.get(folder, ())

    def read(self, path: str) -> bytes | None:
        path = self._hard_links.get(path, path)
        if path not in self._kept:
            self._kept[path] = self._read_again(path)
        return self._kept[path]

    def look(self, path: str, into: Look) -> list[str]:
        """Not offered: a part of a file cannot be read without all that comes before it."""
        return []

    def advance(self, size: int = STEP_BYTES) -> None:
        """Read so many compressed bytes further. Raises RegistryError."""
        if self._stream is None:
            self._stream = self._open()
            self._members = tar_stream.members(self._stream)
        end = self._stream.position + size
        try:
            for member in self._members:
                self._note(member)
                if self._stream.position >= end:
                    return
            while self._stream.read(1 << 20):
                pass
        except (tar_stream.TarError, zlib.error) as error:
            self.close()
            raise self._unreadable(error) from error
        self.complete = True
        self.close()

    def close(self) -> None:
        if self._stream:
            self._stream.blob.close()

    def _open(self) -> _Unpacked:
        return _Unpacked(self.client.open(self.descriptor), str(self.descriptor.get("mediaType") or ""))

    def _unreadable(self, error: Exception) -> RegistryError:
        digest = str(self.descriptor.get("digest"))[:19]
        return RegistryError(
            "REMOTE.MALFORMED",
            f"Layer {digest} of {self.client.reference.name} cannot be read: {error}.",
            "Push it again.",
        )

    def _note(self, member: tar_stream.Member) -> None:
        path = _inside(member.name)
        if path is None or len(self.entries) > _ENTRY_LIMIT:
            problem = (
                f"it has a file {member.name[:80]!r} outside of the image" if path is None else "it has too many files"
            )
            raise tar_stream.TarError(problem)
        folder, name = posixpath.split(path)
        if name == _OPAQUE:
            self._parents(path)
            self._add(folder, Entry(FOLDER, opaque=True))
        elif name.startswith(_REMOVED):
            removed = posixpath.join(folder, name.removeprefix(_REMOVED))
            known = self.entries.get(removed)
            self._parents(removed)
            self._add(removed, Entry(FOLDER, opaque=True) if known and known.kind == FOLDER else known or Entry(GONE))
        elif path != "/":
            self._parents(path)
            self._add_member(path, member)

    def _add_member(self, path: str, member: tar_stream.Member) -> None:
        known = self.entries.get(path)
        if member.kind == tar_stream.FOLDER:
            # Removed and made anew: what is below does not count.
            self._add(path, Entry(FOLDER, opaque=bool(known and (known.opaque or known.kind == GONE))))
        elif member.kind == tar_stream.LINK:
            self._add(path, Entry(LINK, member.target))
        elif member.kind == tar_stream.HARD_LINK:
            target = _inside(member.target)
            if target and self.entries.get(target) == Entry(FILE):
                self._hard_links[path] = self._hard_links.get(target, target)
                self._add(path, Entry(FILE))
        elif member.kind == tar_stream.FILE:
            small = member.size <= READ_LIMIT
            self._add(path, Entry(FILE if small else OTHER))
            self.engine_seen = self.engine_seen or bool(_ENGINE.search(path))
            if small and _KEPT.search(path) and self._kept_size < _KEPT_LIMIT:
                self._kept[path] = member.read()
                self._kept_size += member.size
        else:
            self._add(path, Entry(OTHER))

    def _parents(self, path: str) -> None:
        """Folders that are not in the tar themselves are implied."""
        folder, name = posixpath.split(path)
        while folder not in self.entries or name not in self.children.get(folder, ()):
            known = self.entries.get(folder)
            if known is None:
                self.entries[folder] = Entry(FOLDER)
            elif known.kind == GONE:
                self.entries[folder] = Entry(FOLDER, opaque=True)
            self.children.setdefault(folder, set()).add(name)
            if folder == "/":
                break
            folder, name = posixpath.split(folder)

    def _add(self, path: str, entry: Entry) -> None:
        self.entries[path] = entry

    def _read_again(self, path: str) -> bytes:
        """What was passed without being kept."""
        stream = self._open()
        try:
            for member in tar_stream.members(stream):
                if member.kind == tar_stream.FILE and _inside(member.name) == path:
                    return member.read()
        except (tar_stream.TarError, zlib.error) as error:
            raise self._unreadable(error) from error
        finally:
            stream.blob.close()
        return b""


def _inside(name: str) -> str | None:
    """The path in the image; None for one that leads out of it."""
    if ".." in name.split("/"):
        return None
    return posixpath.normpath("/" + name.lstrip("/"))


class RemoteFiles(LayeredFiles):
    """The files of an image in a registry, of which more and more is known."""

    def __init__(self, client: RegistryClient, image: RemoteImage) -> None:
        # Newest first.
        self.streamed = [StreamedLayer(client, layer) for layer in reversed(image.layers)]
        super().__init__(self.streamed)
        self.complete = False

    def read_more(self) -> None:
        """A step further, in the newest layer that has more. Afterwards complete may be true."""
        for layer in self.streamed:
            if not layer.complete:
                layer.advance()
                break
        self.complete = all(layer.complete for layer in self.streamed)

    @property
    def worth_a_look(self) -> bool:
        """Whether an engine may have been passed."""
        return self.complete or any(layer.engine_seen for layer in self.streamed)

    def close(self) -> None:
        for layer in self.streamed:
            layer.close()
