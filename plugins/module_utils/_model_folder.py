# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A model's folder: is it complete, what does its config say, and how does it get to another host?

PRIVATE to this collection.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import Source, Target

GB = 1000**3

RSYNC_USER = "dgxspark"
RSYNC_MODULE = "model"
# Where rsync keeps a file that is not complete yet: never under its final name.
PARTIAL_FOLDER = ".partial"
# It starts in milliseconds; a loaded host may need longer.
DAEMON_START_SECONDS = 10
# The index of a sharded model, and the name of the only file of an unsharded one (transformers, utils/__init__.py).
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class ModelFolderError(Exception):
    """The folder does not hold a complete model; the message names the file."""


@dataclass(frozen=True)
class ModelFolder:
    """files: relative path to size in bytes; digest: of names, sizes and the headers of the weights."""

    config: dict[str, Any]
    files: dict[str, int]
    digest: str

    @property
    def size(self) -> int:
        return sum(self.files.values())


def _safetensors_header(path: str) -> bytes:
    """The header of a safetensors file, after its promise of a length was compared with the file.

    Format: 8 bytes little-endian length, that many bytes of JSON with data_offsets for each tensor, then the data.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as handle:
        start = handle.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        header = handle.read(length) if length < size else b""
    try:
        tensors = json.loads(header)
        end = max((entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(
            f"{path} is not a complete safetensors file ({size} bytes): its header cannot be read."
        ) from error
    if size != 8 + length + end:
        raise ModelFolderError(
            f"{path} has {size} bytes, its header promises {8 + length + end}: the file is cut off or damaged."
        )
    return header


def _shards(folder: str) -> list[str]:
    index = f"{folder}/{INDEX_NAME}"
    if not os.path.exists(index):
        return [SINGLE_NAME]
    try:
        with open(index, encoding="utf-8") as handle:
            return sorted(set(json.load(handle)["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelFolderError(f"{index} cannot be read: {error}") from error


def read_config(folder: str) -> dict[str, Any]:
    """The folder's config.json. Raises ModelFolderError when it is missing or not JSON."""
    path = f"{folder}/config.json"
    try:
        with open(path, encoding="utf-8") as handle:
            config = json.load(handle)
    except FileNotFoundError as error:
        raise ModelFolderError(
            f"{folder} holds no config.json: it is not the folder of a Hugging Face model. Put the model there or set spark_model_folder."
        ) from error
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelFolderError(f"{path} holds no dictionary.")
    return config


def examine(folder: str) -> ModelFolder:
    """The complete model of a folder. Raises ModelFolderError when something of it is missing."""
    config = read_config(folder)
    digest = hashlib.sha256()
    for shard in _shards(folder):
        path = f"{folder}/{shard}"
        if not os.path.exists(path):
            raise ModelFolderError(f"{path} is missing: the index of the model names it.")
        digest.update(shard.encode() + _safetensors_header(path))
    files: dict[str, int] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != PARTIAL_FOLDER)
        for name in sorted(names):
            path = os.path.join(root, name)
            files[os.path.relpath(path, folder)] = os.path.getsize(path)
    for name, size in sorted(files.items()):
        digest.update(f"{name}\0{size}\0".encode())
    with open(f"{folder}/config.json", "rb") as handle:
        digest.update(handle.read())
    return ModelFolder(config, files, digest.hexdigest())


def differing_facts(config: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Where a config.json says something else than the preset's facts, a sentence each."""
    nested = config.get("text_config")
    text = nested if isinstance(nested, Mapping) else config
    found = {
        "architecture": (config.get("architectures") or [None])[0],
        "model_type": config.get("model_type"),
        "attention_heads": text.get("num_attention_heads"),
        "key_value_heads": text.get("num_key_value_heads"),
        "max_position_embeddings": text.get("max_position_embeddings"),
    }
    return [
        f"{name} is {found[name]!r}, the preset says {facts[name]!r}"
        for name in found
        if name in facts and found[name] is not None and found[name] != facts[name]
    ]


@contextmanager
def rsync_daemon(folder: str, address: str, port: int, token: str, clients: Sequence[str]) -> Iterator[None]:
    """An rsync daemon that offers one folder, read-only, to the given addresses and to who knows the token."""
    with tempfile.TemporaryDirectory(prefix="dgxspark-rsync-") as scratch:
        secrets_path, config_path = f"{scratch}/secrets", f"{scratch}/rsyncd.conf"
        for path, content in (
            (secrets_path, f"{RSYNC_USER}:{token}\n"),
            (
                config_path,
                f"uid = root\ngid = root\nuse chroot = no\naddress = {address}\nport = {port}\n[{RSYNC_MODULE}]\n"
                f"path = {folder}\nread only = yes\nauth users = {RSYNC_USER}\nsecrets file = {secrets_path}\n"
                f"hosts allow = {' '.join(clients)}\nexclude = {PARTIAL_FOLDER}\n",
            ),
        ):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as handle:
                handle.write(content)
        log = open(f"{scratch}/log", "w+", encoding="utf-8")  # noqa: SIM115 - lives as long as the daemon
        try:
            process = subprocess.Popen(
                ["rsync", "--daemon", "--no-detach", f"--config={config_path}", "--log-file=/dev/stderr"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        except FileNotFoundError as error:
            raise ModelFolderError(
                "rsync is not installed on the head; it offers the weights to the workers. Install package rsync."
            ) from error
        try:
            _wait_until_listening(process, address, port, log)
            yield
        finally:
            process.terminate()
            process.wait()
            log.close()


def _wait_until_listening(process: subprocess.Popen[bytes], address: str, port: int, log: IO[str]) -> None:
    deadline = time.monotonic() + DAEMON_START_SECONDS
    while True:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise ModelFolderError(
                    f"The rsync daemon for the weights does not listen at {address}:{port}: {log.read().strip() or error}"
                ) from error
        time.sleep(0.05)


def serve(
    folder: str, model: ModelFolder, address: str, ports: tuple[int, int], token: str, workers: Mapping[str, str]
) -> dict[str, Any]:
    """On the head: offer the folder until every worker has reported. C(ports): of the reports, of rsync. C(workers): name to address."""
    manifest = json.dumps({"digest": model.digest, "size": model.size}).encode()
    with (
        rsync_daemon(folder, address, ports[1], token, list(workers.values())),
        Source(address, ports[0], token, {"manifest": lambda: iter([manifest])}) as source,
    ):
        return source.wait_for(list(workers))


@dataclass(frozen=True)
class FetchedModel:
    changed: bool
    bytes_to_copy: int
    model: ModelFolder | None


def fetch(folder: str, target: Target, rsync_port: int, token: str, check_mode: bool) -> FetchedModel:
    """On a worker: have the head's model, complete. Raises ModelFolderError when it is not afterwards."""
    wanted = json.loads(target.fetch("manifest").read())
    try:
        present: ModelFolder | None = examine(folder)
    except ModelFolderError:
        present = None
    if present and present.digest == wanted["digest"]:
        target.report(done=True, changed=False)
        return FetchedModel(False, 0, present)
    if check_mode:
        target.report(done=True, changed=True)
        return FetchedModel(True, int(wanted["size"]), None)
    end_reports = target.keep_reporting()
    try:
        _check_room(folder, int(wanted["size"]))
        _rsync(folder, target.address, rsync_port, token)
        model = examine(folder)
        if model.digest != wanted["digest"]:
            raise ModelFolderError(f"{folder} was copied, but differs from the head's afterwards.")
    except ModelFolderError as error:
        target.report(done=True, failed=str(error))
        raise
    finally:
        end_reports()
    target.report(done=True, changed=True)
    return FetchedModel(True, model.size, model)


def _check_room(folder: str, size: int) -> None:
    """Raise ModelFolderError when C(size) bytes do not fit beside what the folder holds already."""
    existing = folder
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    held = sum(os.path.getsize(os.path.join(root, name)) for root, _folders, names in os.walk(folder) for name in names)
    free = shutil.disk_usage(existing).free
    if free + held < size:
        raise ModelFolderError(
            f"The model needs {size / GB:.1f} GB in {folder}, where {free / GB:.1f} GB are free and {held / GB:.1f} GB of it are "
            "there already. Make room or set spark_model_folder."
        )


def _rsync(folder: str, address: str, port: int, token: str) -> None:
    os.makedirs(folder, mode=0o755, exist_ok=True)
    command = [
        "rsync",
        "--recursive",
        "--links",
        "--times",
        "--chmod=D0755,F0644",
        "--delete",
        f"--partial-dir={PARTIAL_FOLDER}",
        f"rsync://{RSYNC_USER}@{address}:{port}/{RSYNC_MODULE}/",
        f"{folder}/",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "RSYNC_PASSWORD": token}
        )
    except FileNotFoundError as error:
        raise ModelFolderError(
            "rsync is not installed on this host; it brings the weights from the head. Install package rsync."
        ) from error
    if done.returncode:
        raise ModelFolderError(
            f"rsync from the head ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        )
