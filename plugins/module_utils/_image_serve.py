# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The head's part of staging an image: have it, from a registry if need be, and offer it to the other hosts meanwhile.

PRIVATE to this collection.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._image_store import Engine, ImageStoreError, offered
from ansible_collections.dgxspark.serving.plugins.module_utils._image_sync import (
    GB,
    Fetched,
    ImageIdentity,
    ImageSyncError,
    Offer,
    full_identity,
    known_layers,
    names_of,
    offer_of,
    pull_through,
    site_of,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._image_upstream import UpstreamImage
from ansible_collections.dgxspark.serving.plugins.module_utils._platform import Platform
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.module_utils._registry_client import (
    Access,
    RegistryClient,
    RegistryError,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._registry_login import (
    BadReference,
    Credentials,
    CredentialsError,
    Reference,
    configured_credentials,
    docker_config_path,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._remote_image import PlatformMissing, find_image
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import Site, Source, tell_failure
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandRunner, run_command

# Layers of an image that is being pulled, until every host has it.
SPOOL_FOLDER = "/var/lib/dgxspark/cache/images"
# For the engine's own look at the registry after everything is there: a manifest and a configuration.
CONFIRM_SECONDS = 60


@dataclass(frozen=True)
class HeadTask:
    """What the head is asked for. source: reference in a registry from which it may be pulled, empty for none."""

    image: str
    name: str
    workers: tuple[str, ...]
    address: str
    port: int
    token: str
    source: str = ""
    digest: str = ""
    username: str = ""
    password: str = ""
    ca_path: str = ""
    plain_http: bool = False
    spool_folder: str = SPOOL_FOLDER

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> HeadTask:
        return cls(
            options["image"],
            options["name"],
            tuple(options["workers"]),
            options["address"],
            options["port"],
            options["token"],
            options["source"] or "",
            options["digest"] or "",
            options["registry_username"] or "",
            options["registry_password"] or "",
            options["registry_ca_path"] or "",
            options["registry_plain_http"],
            options["spool_folder"] or SPOOL_FOLDER,
        )


def serve(task: HeadTask, check_mode: bool, progress: Progress, run: CommandRunner = run_command) -> Fetched:
    """Have the image and offer it until every worker has reported.

    Raises ImageSyncError when it cannot be had here, or when a worker could not take it.
    """
    offers: list[Source] = []
    try:
        return _serve(task, check_mode, progress, run, offers)
    except (ImageSyncError, ImageStoreError) as error:
        if not offers:
            tell_failure(task.address, task.port, task.token, task.workers, str(error))
        raise ImageSyncError(str(error)) from error


def _serve(task: HeadTask, check_mode: bool, progress: Progress, run: CommandRunner, offers: list[Source]) -> Fetched:
    engine = Engine.ask(run)
    identity = full_identity(task.image, engine, run)
    if identity is None or (task.digest and task.digest not in names_of(task.image, run)):
        return _serve_from_registry(task, engine, identity, check_mode, progress, run, offers)
    if task.workers:
        image = offered(engine, identity.id, f"{identity.os}/{identity.architecture}")
        with _source(task, offer_of(image, identity, compressed=False), site_of(image), offers) as source:
            progress.enter("offering the image")
            _check_reports(source.wait_for(task.workers))
    return Fetched(False, 0, identity)


def _source(task: HeadTask, offer: Offer, site: Site | None, offers: list[Source]) -> Source:
    offers.append(Source(task.address, task.port, task.token, {"manifest": lambda: iter([offer.as_json()])}, site))
    return offers[-1]


def _check_reports(reports: Mapping[str, Mapping[str, Any]]) -> None:
    failed = {name: report["failed"] for name, report in reports.items() if report.get("failed")}
    if failed:
        raise ImageSyncError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))


def _client(task: HeadTask) -> RegistryClient:
    try:
        reference = Reference.parse(task.source)
        credentials = (
            Credentials(task.username, task.password)
            if task.username
            else configured_credentials(docker_config_path(os.environ), reference.domain)
        )
    except (BadReference, CredentialsError) as error:
        raise ImageSyncError(f"{task.image} cannot be pulled: {error}") from error
    return RegistryClient(reference, Access(credentials, task.ca_path, task.plain_http))


def _serve_from_registry(
    task: HeadTask,
    engine: Engine,
    present: ImageIdentity | None,
    check_mode: bool,
    progress: Progress,
    run: CommandRunner,
    offers: list[Source],
) -> Fetched:
    if not task.source:
        raise ImageSyncError(
            f"Image {task.image} is not on the head and no registry is given from which it could be pulled. Load it there, or set "
            "spark_candidates to an image of a registry."
        )
    client = _client(task)
    machine = os.uname().machine
    try:
        remote = find_image(client, Platform.of("linux", machine))
    except RegistryError as error:
        raise ImageSyncError(f"{task.source} cannot be pulled: {error.message} {error.remedy}".strip()) from error
    except PlatformMissing as error:
        raise ImageSyncError(f"{task.source} is there for {error} only, and this host is {machine}.") from error
    if task.digest and task.digest not in (remote.digest, remote.id):
        raise ImageSyncError(f"{task.source} is {remote.digest} in the registry, not {task.digest}.")
    config = remote.config
    identity = ImageIdentity(
        remote.id,
        tuple(config["rootfs"]["diff_ids"]),
        str(config.get("created", "")),
        str(config.get("architecture", "")),
        remote.size,
        remote.id,
        str(config.get("os") or "linux"),
    )
    known = known_layers(identity.layers, run)
    if check_mode:
        offer = Offer(identity, tuple((str(layer["digest"]), int(layer["size"])) for layer in remote.layers), True)
        if task.workers:
            with _source(task, offer, None, offers) as source:
                _check_reports(source.wait_for(task.workers))
        return Fetched(True, offer.missing_bytes(known), None, present.id if present else "")
    _check_spool(task, remote.size)
    image = UpstreamImage.of(client, remote, task.spool_folder)
    offer = offer_of(image, identity, compressed=True)
    fetched = _pull_and_offer(task, engine, image, offer, known, progress, run, offers)
    image.forget()
    _confirm(task, run)
    return fetched


def _check_spool(task: HeadTask, size: int) -> None:
    os.makedirs(task.spool_folder, mode=0o700, exist_ok=True)
    held = sum(
        os.path.getsize(os.path.join(root, name))
        for root, _folders, names in os.walk(task.spool_folder)
        for name in names
    )
    free = shutil.disk_usage(task.spool_folder).free
    if free + held < size:
        raise ImageSyncError(
            f"The layers of {task.source} need {size / GB:.1f} GB in {task.spool_folder} until every host has the image, and "
            f"{free / GB:.1f} GB are free there. Make room, or pull it yourself on the head (docker pull)."
        )


def _pull_and_offer(
    task: HeadTask,
    engine: Engine,
    image: UpstreamImage,
    offer: Offer,
    known: int,
    progress: Progress,
    run: CommandRunner,
    offers: list[Source],
) -> Fetched:
    """The head's own engine pulls from the same folder as the others, at the same time."""
    failures: list[str] = []
    own: list[Fetched] = []

    def pull() -> None:
        try:
            own.append(pull_through(task.image, offer, known, site_of(image), engine, progress, run))
        except (ImageSyncError, ImageStoreError) as error:
            failures.append(image.failure or str(error))

    try:
        with _source(task, offer, site_of(image), offers) if task.workers else nullcontext() as source:
            thread = threading.Thread(target=pull, daemon=True)
            thread.start()
            reports = source.wait_for(task.workers, busy=thread.is_alive) if source else {}
            thread.join()
    finally:
        image.stop()
    if failures:
        raise ImageSyncError(failures[0])
    _check_reports(reports)
    return own[0]


def _confirm(task: HeadTask, run: CommandRunner) -> None:
    """Let the engine see for itself that it has what the registry has: then it knows the image by its digest there.

    Not needed by any host, and no failure where the engine may not ask that registry.
    """
    with suppress(OSError):
        run(["timeout", str(CONFIRM_SECONDS), "docker", "pull", "--quiet", task.source])
