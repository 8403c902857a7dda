# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A model's folder: is it complete, what does its config say, and can the engine's container read it?

PRIVATE to this collection.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GB = 1000**3

# Where rsync keeps a file that is not complete yet: never under its final name.
PARTIAL_FOLDER = ".partial"
# Where it writes meanwhile. Not the same: rsync removes a folder of partial files when it takes the last one out of it.
INCOMING_FOLDER = ".incoming"
# Where huggingface_hub keeps its notes and what is not complete yet, in a folder that it downloads to.
HUB_NOTES = ".cache"
NOT_OF_THE_MODEL = (PARTIAL_FOLDER, INCOMING_FOLDER, HUB_NOTES, ".git", "lost+found")
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


def _shards(folder: str) -> dict[str, set[str]]:
    """The tensors of each weights file, as the index says; of a single file nothing is said."""
    index = f"{folder}/{INDEX_NAME}"
    if not os.path.exists(index):
        return {SINGLE_NAME: set()}
    shards: dict[str, set[str]] = {}
    try:
        with open(index, encoding="utf-8") as handle:
            for tensor, shard in json.load(handle)["weight_map"].items():
                shards.setdefault(shard, set()).add(tensor)
        return shards
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
    for shard, tensors in sorted(_shards(folder).items()):
        path = f"{folder}/{shard}"
        if not os.path.exists(path):
            raise ModelFolderError(f"{path} is missing: the index of the model names it.")
        header = _safetensors_header(path)
        absent = sorted(tensors - json.loads(header).keys())
        if absent:
            raise ModelFolderError(
                f"{folder}/{INDEX_NAME} is wrong: it says that {absent[0]} is in {shard}, which does not hold it "
                f"({len(absent)} such). Index and weights are of different versions; get both anew."
            )
        digest.update(shard.encode() + header)
    files: dict[str, int] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in NOT_OF_THE_MODEL)
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


@dataclass(frozen=True)
class Unreadable:
    """A file or folder that a container's root without capabilities cannot read. mode: what it should be."""

    path: str
    mode: int


def unreadable(root: str) -> list[Unreadable]:
    """What of a model is neither root's nor open to everybody. Links are followed: they lead to the blobs of a hub cache."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_OF_THE_MODEL]
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            wanted = 0o005 if stat.S_ISDIR(status.st_mode) else 0o004
            if status.st_mode & wanted != wanted and not (status.st_uid == 0 and status.st_mode & (wanted << 6)):
                found.append(Unreadable(path, stat.S_IMODE(status.st_mode) | wanted))
    return found


def make_readable(found: Sequence[Unreadable]) -> None:
    """Raises ModelFolderError when that is not allowed here."""
    for item in found:
        try:
            os.chmod(item.path, item.mode)
        except OSError as error:
            raise ModelFolderError(
                f"{item.path} cannot be read by the engine's container and cannot be opened to it: {error.strerror}. "
                f"On the host: sudo chmod o+rX {shlex.quote(item.path)}"
            ) from error


def room_for(folder: str, size: int, held: int = 0) -> None:
    """Raise ModelFolderError when C(size) bytes do not fit beside the C(held) ones that are there and count."""
    existing = folder
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    free = shutil.disk_usage(existing).free
    if free + held < size:
        raise ModelFolderError(
            f"The model needs {size / GB:.1f} GB in {folder}, where {free / GB:.1f} GB are free"
            + (f" and {held / GB:.1f} GB of it are there already" if held else "")
            + ". Make room or set spark_model_folder."
        )
