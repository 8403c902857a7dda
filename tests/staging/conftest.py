# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Staging against real programs: huggingface_hub, rsync, docker-registry, the engines of the lab."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / ".collections"))

CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096},
}


def safetensors(name: str, size: int) -> bytes:
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + os.urandom(size)


def make_model(folder: Path, shards: int, size: int) -> Path:
    """A model of random shards, with its index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = {f"t{number}": f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)}
    for tensor, name in names.items():
        (folder / name).write_bytes(safetensors(tensor, size))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "hub", 3, 2_000_000)
