# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The same image on every host: each engine pulls from the head, over the fabric, the layers that it lacks.

PRIVATE to this collection. The head is a read-only registry for the time of the task (_image_store, _rendezvous); every other
host has one on its loopback address that passes the engine's requests on (_loopback_registry). So an engine does what it does
with every registry: it takes several layers at once, takes up what broke, and compares each layer with its digest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.dgxspark.serving.plugins.module_utils._image_store import (
    BytesContent,
    Engine,
    ImageStoreError,
    OfferedImage,
    common_layers,
    config_digest,
    note_known_layers,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._loopback_registry import LoopbackRegistry, head_site
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import Page, Site, Target
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandRunner, run_command

GB = 1000**3
# Name of the image at the registry that lives as long as the task.
STAGED = "dgxspark/staging:image"
# Without a byte and without an end for so long, a pull hangs: unpacking the largest known layer takes minutes.
PULL_SILENCE_SECONDS = 1800
# An unpacked layer beside its compressed blob: images with CUDA and torch unpack to 1.9 to 2.4 times their size.
UNPACKED_TIMES = 2.5


class ImageSyncError(Exception):
    """The image could not be brought to this host, or is not the same afterwards."""


@dataclass(frozen=True)
class ImageIdentity:
    """What makes two images the same: the layers and the configuration. size: bytes; config: digest of the configuration.

    The id alone does not: it is the digest of the configuration in the classic image store and that of a manifest in the
    containerd store. config is empty where it cannot be read (containerd's store without root).
    """

    id: str
    layers: tuple[str, ...]
    created: str
    architecture: str
    size: int
    config: str = ""
    os: str = "linux"

    def same_content(self, other: ImageIdentity) -> bool:
        if self.config and other.config and self.config != other.config:
            return False
        return (self.layers, self.created, self.architecture) == (other.layers, other.created, other.architecture)

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "layers": list(self.layers)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ImageIdentity:
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
        os=str(found.get("Os") or "linux"),
    )


def full_identity(image: str, engine: Engine, run: CommandRunner = run_command) -> ImageIdentity | None:
    """With the digest of the configuration."""
    found = image_identity(image, run)
    if found is None:
        return None
    return replace(found, config=config_digest(engine, found.id, f"{found.os}/{found.architecture}"))


def names_of(image: str, run: CommandRunner = run_command) -> str:
    """Digests and id under which the engine knows the image."""
    return run(["docker", "image", "inspect", "--format", "{{.Id}} {{.RepoDigests}}", image]).stdout


def known_layers(wanted: Sequence[str], run: CommandRunner = run_command) -> int:
    """How many of the lowest layers the engine has, from whatever image."""
    ids = run(["docker", "image", "ls", "--all", "--quiet", "--no-trunc"]).stdout.split()
    if not ids:
        return 0
    listed = run(["docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", *dict.fromkeys(ids)]).stdout
    return common_layers(wanted, [json.loads(line) or [] for line in listed.splitlines() if line.strip()])


@dataclass(frozen=True)
class Offer:
    """What the head tells the others. layers: digest and size of each blob, the lowest first; compressed: as they travel."""

    identity: ImageIdentity
    layers: tuple[tuple[str, int], ...]
    compressed: bool

    def as_json(self) -> bytes:
        content = {"identity": self.identity.as_dict(), "layers": self.layers, "compressed": self.compressed}
        return json.dumps(content).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Offer:
        content = json.loads(text)
        layers = tuple((str(digest), int(size)) for digest, size in content["layers"])
        return cls(ImageIdentity.from_dict(content["identity"]), layers, bool(content["compressed"]))

    def missing_bytes(self, known: int) -> int:
        return sum(size for _digest, size in self.layers[known:])

    def needed_bytes(self, known: int) -> int:
        """On the disk, at most: the engine keeps what arrives beside what it unpacks until all layers are unpacked."""
        return int(self.missing_bytes(known) * (1 + (UNPACKED_TIMES if self.compressed else 1)))


def offer_of(image: OfferedImage, identity: ImageIdentity, compressed: bool) -> Offer:
    """The sizes are those of a manifest for an engine that lacks nothing: exact ones are read when a layer is asked for."""
    _media_type, manifest = image.manifest(known=len(image.diff_ids))
    sizes = [int(layer["size"]) for layer in json.loads(manifest)["layers"]]
    return Offer(identity, tuple(zip(image.layers(), sizes, strict=True)), compressed)


def site_of(image: OfferedImage) -> Site:
    """The image as the pages of a registry (OCI distribution specification, pulling)."""

    def page(path: str) -> Page | None:
        split = urlsplit(path)
        _repository, _slash, rest = split.path.partition("/manifests/")
        if rest:
            query = dict(part.split("=", 1) for part in split.query.split("&") if "=" in part)
            media_type, manifest = image.manifest(int(query.get("known", "0")))
            return Page(BytesContent(manifest), media_type)
        _repository, _slash, digest = split.path.partition("/blobs/")
        content = image.blob(digest) if digest else None
        return Page(content) if content else None

    return page


@dataclass(frozen=True)
class Fetched:
    """bytes_received: copied to this host, or what would be in check mode. replaced: id that the name had before."""

    changed: bool
    bytes_received: int
    identity: ImageIdentity | None
    replaced: str = ""


def fetch(
    image: str, target: Target, check_mode: bool, progress: Progress, run: CommandRunner = run_command
) -> Fetched:
    """On another host: have the image that the head has, under the same name.

    Raises ImageSyncError when the pull fails or what was pulled is not what the head has.
    """
    offer = Offer.from_json(target.fetch_manifest())
    try:
        engine = Engine.ask(run)
        present = full_identity(image, engine, run)
        if present and present.same_content(offer.identity):
            target.report(done=True, changed=False)
            return Fetched(False, 0, present)
        known = known_layers(offer.identity.layers, run)
        if check_mode:
            target.report(done=True, changed=True)
            return Fetched(True, offer.missing_bytes(known), None, present.id if present else "")
        end_reports = target.keep_reporting(lambda: {"done_bytes": progress.done, "total_bytes": progress.total})
        try:
            fetched = pull_through(image, offer, known, head_site(target, known), engine, progress, run)
        finally:
            end_reports()
    except (ImageSyncError, ImageStoreError) as error:
        target.report(done=True, failed=str(error))
        raise ImageSyncError(str(error)) from error
    target.report(done=True, changed=True, bytes=fetched.bytes_received)
    return replace(fetched, replaced=present.id if present else "")


def pull_through(
    image: str,
    offer: Offer,
    known: int,
    site: Site,
    engine: Engine,
    progress: Progress,
    run: CommandRunner = run_command,
) -> Fetched:
    """Have this host's engine pull what a site offers, and give it its name. Raises ImageSyncError."""
    check_room(image, offer.needed_bytes(known), engine)
    wanted = offer.identity
    blobs = [digest for digest, _size in offer.layers[:known]]
    note_known_layers(engine, dict(zip(blobs, wanted.layers, strict=False)))
    with LoopbackRegistry(site) as registry:
        progress.enter("image", offer.missing_bytes(known), lambda: registry.bytes_sent)
        staged = f"{registry.address}/{STAGED}"
        try:
            _pull(staged, f"{wanted.os}/{wanted.architecture}", lambda: registry.bytes_sent)
        except ImageSyncError as error:
            raise ImageSyncError(f"{image} could not be pulled from the head: {registry.failure or error}") from error
        try:
            pulled = full_identity(staged, engine, run)
            if not pulled or not pulled.same_content(wanted):
                raise ImageSyncError(
                    f"{image} was copied, but this host does not have the same layers and configuration as the head afterwards."
                )
            tagged = run(["docker", "tag", staged, image])
            if tagged.returncode:
                raise ImageSyncError(f"The copied image cannot be named {image}: {tagged.stderr.strip()}")
        finally:
            run(["docker", "image", "rm", staged])
        return Fetched(True, registry.bytes_sent, pulled)


def check_room(image: str, size: int, engine: Engine) -> None:
    """Docker stores an image where its root folder is, not on the system disk."""
    free = shutil.disk_usage(engine.folder).free if os.path.isdir(engine.folder) else None
    if free is not None and free < size:
        raise ImageSyncError(
            f"{image} needs {size / GB:.1f} GB in {engine.folder} while its layers arrive and are unpacked, and {free / GB:.1f} GB are "
            "free. Remove images that are not used (docker image prune) or move Docker's data (data-root)."
        )


def _pull(reference: str, platform: str, received: Callable[[], int]) -> None:
    """C(docker pull), given up when nothing comes any more. Raises ImageSyncError."""
    command = ["docker", "pull", "--quiet", "--platform", platform, reference]
    try:
        # Watched while it runs, and given up when it stalls: not for run_command.
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError as error:
        raise ImageSyncError("docker is not installed on this host.") from error
    before, since = -1, time.monotonic()
    try:
        while process.poll() is None:
            now = received()
            if now != before:
                before, since = now, time.monotonic()
            if time.monotonic() - since > PULL_SILENCE_SECONDS:
                raise ImageSyncError(f"docker pull has not moved for {PULL_SILENCE_SECONDS} s after {now / GB:.2f} GB.")
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            # The engine ends a pull when its client goes, and drops what it has of it.
            process.kill()
        _output, words = process.communicate()
    if process.returncode:
        raise ImageSyncError(_explained(words.strip()))


def _explained(words: str) -> str:
    last = words.splitlines()[-1] if words else "docker pull said nothing"
    if "no space left on device" in words:
        return f"the disk of Docker is full ({last}). Make room (docker image prune), then run again; nothing of the image is left."
    return f"docker pull: {last}"
