# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The same image on every host: copied from the head over the fabric, without a file in between.

PRIVATE to this collection.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import CHUNK_BYTES, Source, Target
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandRunner, run_command

GB = 1000**3


class ImageSyncError(Exception):
    """The image could not be brought to this host, or is not the same afterwards."""


@dataclass(frozen=True)
class ImageIdentity:
    """What makes two images the same: the layers and the configuration. size: bytes.

    The id alone does not: it is the digest of the configuration in the classic image store and that of a manifest in the
    containerd store.
    """

    id: str
    layers: tuple[str, ...]
    created: str
    architecture: str
    size: int

    def same_content(self, other: ImageIdentity) -> bool:
        return (self.layers, self.created, self.architecture) == (other.layers, other.created, other.architecture)

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "layers": list(self.layers)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ImageIdentity:
        return cls(**{**values, "layers": tuple(values["layers"])})


def image_identity(image: str, run: CommandRunner = run_command) -> ImageIdentity | None:
    """The identity of a local image; None when it is not there. Raises ImageSyncError when the engine does not answer."""
    result = run(["docker", "image", "inspect", image])
    if result.returncode:
        if "No such image" in result.stderr:
            return None
        raise ImageSyncError(f"Cannot look at image {image}: {result.stderr.strip() or 'docker gave no answer'}")
    found = json.loads(result.stdout)[0]
    return ImageIdentity(
        found["Id"],
        tuple(found["RootFS"].get("Layers") or ()),
        str(found.get("Created", "")),
        str(found.get("Architecture", "")),
        int(found.get("Size", 0)),
    )


def _saved(image: str) -> Iterator[bytes]:
    with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output = cast(IO[bytes], process.stdout)
        while chunk := output.read(CHUNK_BYTES):
            yield chunk
        if process.wait():
            raise ImageSyncError(f"docker save {image} ended with {process.returncode}")


def serve(
    image: str, identity: ImageIdentity, address: str, port: int, token: str, targets: Sequence[str]
) -> dict[str, Any]:
    """On the head: offer the image until every target has reported. Returns the reports by target."""
    offers = {"manifest": lambda: iter([json.dumps(identity.as_dict()).encode()]), "image": lambda: _saved(image)}
    with Source(address, port, token, offers) as source:
        return source.wait_for(targets)


@dataclass(frozen=True)
class Fetched:
    changed: bool
    bytes_received: int
    identity: ImageIdentity | None


def fetch(image: str, target: Target, check_mode: bool, run: CommandRunner = run_command) -> Fetched:
    """On another host: have the image that the head has, under the same name.

    Raises ImageSyncError when the load fails or what was loaded is not what the head has.
    """
    wanted = ImageIdentity.from_dict(json.loads(target.fetch("manifest").read()))
    present = image_identity(image, run)
    if present and present.same_content(wanted):
        target.report(done=True, changed=False)
        return Fetched(False, 0, present)
    if check_mode:
        target.report(done=True, changed=True)
        return Fetched(True, wanted.size, None)
    end_reports = target.keep_reporting()
    try:
        _check_room(image, wanted.size, run)
        received = _load(target)
        loaded = image_identity(image, run)
        if not loaded or not loaded.same_content(wanted):
            raise ImageSyncError(
                f"{image} was copied, but this host does not have the same layers as the head afterwards."
            )
    except ImageSyncError as error:
        target.report(done=True, failed=str(error))
        raise
    finally:
        end_reports()
    target.report(done=True, changed=True)
    return Fetched(True, received, loaded)


def _check_room(image: str, size: int, run: CommandRunner) -> None:
    """Docker stores an image where its root folder is, not on the system disk. C(size): bytes of the unpacked image."""
    root = run(["docker", "info", "--format", "{{.DockerRootDir}}"]).stdout.strip()
    free = shutil.disk_usage(root).free if root and os.path.isdir(root) else None
    if free is not None and free < size:
        raise ImageSyncError(
            f"{image} needs {size / GB:.1f} GB in {root}, where {free / GB:.1f} GB are free. Remove images that are not "
            "used (docker image prune) or move Docker's data (data-root)."
        )


def _load(target: Target) -> int:
    received = 0
    response = target.fetch("image")
    with subprocess.Popen(
        ["docker", "load", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        archive, words = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stderr)
        try:
            while chunk := response.read(CHUNK_BYTES):
                archive.write(chunk)
                received += len(chunk)
            archive.close()
        except OSError:
            # docker load ended early; its own words say why.
            pass
        reason = words.read().decode(errors="replace").strip()
        if process.wait():
            raise ImageSyncError(f"docker load failed after {received / 1e9:.2f} GB: {reason}")
    return received
