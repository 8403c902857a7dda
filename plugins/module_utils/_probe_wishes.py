# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the options of registry_probe ask of an image.

PRIVATE to this collection.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._image_verdict import Wishes
from ansible_collections.dgxspark.serving.plugins.module_utils._pep440 import Requirement


class BadOption(Exception):
    """An option that cannot be used; the message names it."""


def read_model_config(path: str) -> dict[str, Any]:
    """The config.json of a model folder, or the file itself."""
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        with open(file, encoding="utf-8") as handle:
            config = json.load(handle)
    except (OSError, ValueError) as error:
        raise BadOption(f"model_path: cannot read {file}: {error}") from error
    if not isinstance(config, dict):
        raise BadOption(f"model_path: {file} is not the configuration of a model")
    return config


def wishes_of(params: dict[str, Any]) -> Wishes:
    """What the options ask for."""
    architectures = list(params["architecture"])
    model_type, remote_code = "", False
    if params["model_path"]:
        config = read_model_config(params["model_path"])
        architectures += [name for name in config.get("architectures") or [] if name not in architectures]
        model_type = config.get("model_type") or ""
        remote_code = "AutoConfig" in (config.get("auto_map") or {})
    for option in ("require", "prefer"):
        for name, wish in params[option].items():
            check_wish(option, name, wish)
    return Wishes(
        architectures=tuple(architectures),
        model_type=model_type,
        remote_code=remote_code,
        require=params["require"],
        prefer=params["prefer"],
        reasoning_parser=params["reasoning_parser"] or "",
        tool_call_parser=params["tool_call_parser"] or "",
        gpu_arch=gpu_architecture(params["gpu_arch"]),
    )


def check_wish(option: str, name: str, wish: Any) -> None:
    if isinstance(wish, bool):
        return
    try:
        Requirement.parse(str(wish))
    except ValueError as error:
        raise BadOption(f"{option}: {name}: {error}") from error


def gpu_architecture(text: str | None) -> tuple[int, int] | None:
    if not text:
        return None
    major, _dot, minor = text.partition(".")
    if not major.isdigit() or not minor.isdigit():
        raise BadOption(f"gpu_arch: write a compute capability like 12.1, not {text!r}")
    return int(major), int(minor)
