# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The work of module registry_probe: images are looked up, looked into or remembered, and judged.

PRIVATE to this collection.
"""

from __future__ import annotations

import difflib
import multiprocessing
import os
import platform as host_platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _host_python as host_python
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, Finding, as_dicts, worst_severity
from ansible_collections.dgxspark.serving.plugins.module_utils._image_files import ImageFiles, open_image
from ansible_collections.dgxspark.serving.plugins.module_utils._image_layers import Redirected
from ansible_collections.dgxspark.serving.plugins.module_utils._image_probe import (
    ENGINES,
    Contents,
    ImageProbe,
    Request,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._image_verdict import (
    Wishes,
    built_for,
    judge,
    judge_architectures,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._import_probe import ask_engine
from ansible_collections.dgxspark.serving.plugins.module_utils._model_registry import MODEL
from ansible_collections.dgxspark.serving.plugins.module_utils._platform import Platform
from ansible_collections.dgxspark.serving.plugins.module_utils._probe_cache import ProbeCache, fingerprint
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
)
from ansible_collections.dgxspark.serving.plugins.module_utils._remote_image import (
    PlatformMissing,
    RemoteFiles,
    RemoteImage,
    find_image,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._tar_stream import TarError

Result = tuple[dict[str, Any], list[Finding]]
# Requests to a registry wait; more at once gain nothing and look like an attack.
_MOST_REQUESTS = 8
# How many names that are close are told, and how alike they must be (difflib: 0 to 1).
_MOST_CLOSE, _CLOSE = 3, 0.5
# Whatever of these changes, answers that were kept are not taken any more.
_DECISIVE_MODULES = (
    "_fatbin",
    "_image_files",
    "_image_layers",
    "_image_probe",
    "_image_python",
    "_import_probe",
    "_model_registry",
    "_remote_image",
    "_static_python",
    "_tar_stream",
)


@dataclass(frozen=True)
class Settings:
    """How images are looked at; what is asked of them is in Request and Wishes."""

    docker_host: str
    method: str
    platform: str
    timeout: int
    cache_folder: str
    cache_writable: bool
    # Of a registry. username: empty for what the configuration of Docker says.
    docker_config: str = ""
    username: str = ""
    password: str = ""
    ca_path: str = ""
    plain_http: bool = False


def cache_of(settings: Settings) -> ProbeCache:
    prefix = __name__.rpartition(".")[0]
    modules = [sys.modules[f"{prefix}.{name}"] for name in _DECISIVE_MODULES]
    return ProbeCache(settings.cache_folder, fingerprint(modules), settings.cache_writable)


class Probe:
    """One way to look at images. Subclasses know where they are."""

    def __init__(self, settings: Settings, request: Request, wishes: Wishes, cache: ProbeCache) -> None:
        self.settings, self.request, self.wishes, self.cache = settings, request, wishes, cache

    def probe(self, name: str) -> Result:
        """(entry of the result, findings) for one image."""
        began = monotonic()
        entry = _empty_entry(name)
        contents = Contents()
        try:
            contents = self._look(name, entry)
            findings = judge(name, contents, self.wishes)
        except _Stopped as stopped:
            findings = [stopped.finding]
        self._describe(entry, contents)
        entry["suitable"] = worst_severity(findings) != ERROR
        entry["findings"] = as_dicts(findings)
        entry["duration_ms"] = round((monotonic() - began) * 1000)
        return entry, findings

    def _look(self, name: str, entry: dict[str, Any]) -> Contents:
        """Fill in what is known without looking into the image, and look. Raises _Stopped."""
        raise NotImplementedError

    def _remembered(self, image_id: str, entry: dict[str, Any], look: Callable[[], Contents]) -> Contents:
        key = {
            "id": image_id,
            "source": type(self).__name__,
            "method": self.settings.method,
            "engine": self.request.engine,
            "architectures": sorted(self.request.architectures),
            "packages": sorted(self.request.packages),
            "questions": _questions(self.wishes),
        }
        contents = self.cache.get(key)
        entry["cached"] = contents is not None
        if contents is None:
            contents = look()
            # A failure may be over next time.
            if not contents.imported or not contents.imported.problem:
                self.cache.put(key, contents)
        return contents

    def _describe(self, entry: dict[str, Any], contents: Contents) -> None:
        verdicts, closest = judge_architectures(contents, self.wishes) if contents.engine else ({}, {})
        registry, asked = contents.registry, bool(self.wishes.architectures)
        entry.update(
            engine=contents.engine,
            engine_version=contents.engine_version,
            engine_path=contents.engine_path,
            editable=contents.editable,
            versions=contents.versions,
            architectures=verdicts,
            closest=closest,
            known_architectures=registry.kinds if registry and not asked else {},
            plugins=contents.plugins,
            nccl_conf=contents.nccl_conf,
            gpu_archs=built_for(contents),
            reasoning_parsers=contents.reasoning_parsers,
            tool_call_parsers=contents.tool_call_parsers,
            complete=contents.complete,
        )


class _Stopped(Exception):
    """There is nothing to look into; the finding says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def _questions(wishes: Wishes) -> list[str]:
    """What decides how far a registry's layers are read."""
    asked = (wishes.model_type, wishes.reasoning_parser, wishes.tool_call_parser, str(wishes.gpu_arch or ""))
    return [*asked, *sorted(f"{name}={wish}" for name, wish in {**wishes.prefer, **wishes.require}.items())]


def _empty_entry(name: str) -> dict[str, Any]:
    return {
        "image": name,
        "id": "",
        "digests": [],
        "present": False,
        "platform": "",
        "entrypoint": [],
        "user": "",
        "cached": False,
    }


def _config_facts(config: dict[str, Any]) -> dict[str, Any]:
    entrypoint = config.get("Entrypoint")
    return {"entrypoint": entrypoint if isinstance(entrypoint, list) else [], "user": str(config.get("User") or "")}


class EngineProbe(Probe):
    """Images of the Docker Engine of the host."""

    def __init__(self, settings: Settings, request: Request, wishes: Wishes, cache: ProbeCache, client: Any) -> None:
        super().__init__(settings, request, wishes, cache)
        self.client = client
        if settings.platform:
            self.platform = Platform.parse(settings.platform)
        else:
            version = client.version()
            self.platform = Platform.of(version["Os"], version["Arch"])

    def _look(self, name: str, entry: dict[str, Any]) -> Contents:
        image = host_python.look_up(self.client.inspect_image, name)
        if image is None:
            raise _Stopped(self._absent(name))
        found = Platform.of(image["Os"], image["Architecture"], image.get("Variant") or "")
        entry.update(
            id=image.get("Id", ""),
            digests=image.get("RepoDigests") or [],
            present=True,
            platform=str(found),
            **_config_facts(image.get("Config") or {}),
        )
        if found != self.platform:
            raise _Stopped(_wrong_platform(name, found, self.platform))
        return self._remembered(image["Id"], entry, lambda: self._look_into(name, image))

    def _look_into(self, name: str, image: dict[str, Any]) -> Contents:
        try:
            contents = self._read(image)
            if self.settings.method == "import" and contents.engine:
                contents.imported = ask_engine(
                    self.client, image["Id"], contents.interpreter, contents.engine, self.settings.timeout
                )
        except Exception as error:
            if not (host_python.is_engine_error(error) or isinstance(error, (TarError, OSError))):
                raise
            raise host_python.EngineUnavailable(
                f"The Docker Engine cannot read files of image {name}: {error}"
            ) from error
        return contents

    def _read(self, image: dict[str, Any]) -> Contents:
        config = image.get("Config") or {}
        try:
            with open_image(self.client, image) as files:
                return ImageProbe(files, config, self.request).run()
        except (FileNotFoundError, Redirected):
            # The layers were removed while they were read, or are not what they look like: the engine knows.
            with ImageFiles(self.client, image["Id"]) as files:
                return ImageProbe(files, config, self.request).run()

    def _absent(self, name: str) -> Finding:
        present = sorted(
            {tag for image in self.client.images() for tag in image.get("RepoTags") or [] if "<none>" not in tag}
        )
        close = [tag for tag in present if tag.partition(":")[0] == name.partition(":")[0]]
        close += [tag for tag in difflib.get_close_matches(name, present, _MOST_CLOSE, _CLOSE) if tag not in close]
        hint = f" It has: {', '.join(close[:_MOST_CLOSE])}." if close else ""
        return Finding(
            "IMAGE.ABSENT",
            ERROR,
            name,
            f"The Docker Engine of this host does not have the image.{hint}",
            f"Pull it (docker pull {name}), or load it from a host that has it.",
        )


class RemoteProbe(Probe):
    """Images of a registry."""

    def __init__(self, settings: Settings, request: Request, wishes: Wishes, cache: ProbeCache) -> None:
        super().__init__(settings, request, wishes, cache)
        text = settings.platform or f"linux/{host_platform.machine()}"
        self.platform = Platform.parse(text)

    def _look(self, name: str, entry: dict[str, Any]) -> Contents:
        entry.update(bytes_read=0, size=0)
        try:
            reference = Reference.parse(name)
            client = RegistryClient(reference, self._access(reference))
        except (BadReference, CredentialsError) as error:
            text = str(error)
            raise _Stopped(Finding("REMOTE.REFERENCE", ERROR, name, f"{text[:1].upper()}{text[1:]}.")) from error
        try:
            return self._ask(client, name, entry)
        except RegistryError as error:
            raise _Stopped(Finding(error.id, ERROR, name, error.message, error.remedy, error.evidence)) from error
        except PlatformMissing as missing:
            entry["present"] = True
            has = ", ".join(map(str, missing.platforms)) or "no platform that it names"
            raise _Stopped(
                Finding(
                    "IMAGE.PLATFORM",
                    ERROR,
                    name,
                    f"The registry has the image for {has}; {self.platform} is needed.",
                    "Use an image that is built for it.",
                )
            ) from missing
        finally:
            entry["bytes_read"] = client.bytes_read
            client.close()

    def _access(self, reference: Reference) -> Access:
        settings = self.settings
        if settings.username:
            credentials = Credentials(settings.username, settings.password)
        else:
            credentials = configured_credentials(settings.docker_config, reference.domain)
        return Access(credentials, settings.ca_path, settings.plain_http, monotonic() + settings.timeout)

    def _ask(self, client: RegistryClient, name: str, entry: dict[str, Any]) -> Contents:
        image = find_image(client, self.platform)
        config = image.config.get("config") or {}
        entry.update(
            id=image.id,
            digests=[f"{client.reference.name}@{image.digest}"],
            present=True,
            platform=str(image.platform),
            size=image.size,
            **_config_facts(config),
        )
        if image.platform != self.platform:
            raise _Stopped(_wrong_platform(name, image.platform, self.platform))
        return self._remembered(image.id, entry, lambda: self._read(client, image, config))

    def _read(self, client: RegistryClient, image: RemoteImage, config: dict[str, Any]) -> Contents:
        files = RemoteFiles(client, image)
        try:
            while True:
                files.read_more()
                if files.worth_a_look:
                    contents = ImageProbe(files, config, self.request).run()
                    if files.complete or settled(contents, self.request, self.wishes):
                        return contents
        finally:
            files.close()


def settled(contents: Contents, request: Request, wishes: Wishes) -> bool:
    """Whether no layer that has not been read yet can change the answer: everything that was asked for has been found.

    What is not found may always be in an older layer, so a no takes all of them.
    """
    first = ENGINES[0] if request.engine == "auto" else request.engine
    registry = contents.registry
    if contents.engine != first or contents.editable or registry is None or not registry.complete:
        return False
    if not contents.engine_version or any(registry.kind(name) != MODEL for name in wishes.architectures):
        return False
    for wanted, known in (
        (wishes.reasoning_parser, contents.reasoning_parsers),
        (wishes.tool_call_parser, contents.tool_call_parsers),
        (wishes.model_type, contents.model_types or ()),
        ("torch" if wishes.gpu_arch else "", [name for name, version in contents.versions.items() if version]),
    ):
        if wanted and wanted not in known:
            return False
    return all(contents.versions.get(name) for name in request.packages)


def _wrong_platform(name: str, found: Platform, wanted: Platform) -> Finding:
    return Finding(
        "IMAGE.PLATFORM",
        ERROR,
        name,
        f"The image is for {found}, {wanted} is needed: its programs end with 'exec format error' there.",
        f"Pull it with --platform {wanted}, or use an image that is built for it.",
    )


def probe_all(probe: Probe, names: Sequence[str], make_client: Callable[[], Any] | None) -> list[Result]:
    """All images, several at once: over processes where the work is computing, over threads where it is waiting."""
    if len(names) == 1:
        return [probe.probe(names[0])]
    if make_client is None:
        with ThreadPoolExecutor(_MOST_REQUESTS) as pool:
            return list(pool.map(probe.probe, names))
    workers = min(len(names), os.cpu_count() or 1)
    if workers == 1:
        return [probe.probe(name) for name in names]
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(workers, context, partial(_start_worker, probe, make_client)) as processes:
            return list(processes.map(_probe_in_worker, names))
    except BrokenProcessPool as error:
        raise host_python.EngineUnavailable(
            "A process that looked into images was killed, as when the host runs out of memory. Give fewer images at once."
        ) from error


_worker_probe: Callable[[str], Result] | None = None


def _start_worker(probe: Any, make_client: Callable[[], Any]) -> None:
    global _worker_probe
    connected = False

    def run(name: str) -> Result:
        nonlocal connected
        if not connected:
            # A connection of its own: two processes must not share one.
            probe.client, connected = make_client(), True
        result: Result = probe.probe(name)
        return result

    _worker_probe = run


def _probe_in_worker(name: str) -> Result:
    if _worker_probe is None:
        raise RuntimeError("the worker was not started")
    return _worker_probe(name)
