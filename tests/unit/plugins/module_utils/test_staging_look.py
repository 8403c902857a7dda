# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host has already: anything that staging would have to repair or explain counts as not there."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _staging_look as staging_look
from ansible_collections.dgxspark.serving.plugins.module_utils._image_sync import ImageIdentity
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandResult, once_each

IDENTITY = ImageIdentity("sha256:1", ("sha256:a", "sha256:b"), "2026", "arm64", 7, "sha256:c")
SEEN: dict[str, Any] = {
    "image": {"identity": IDENTITY.as_dict(), "names": "sha256:1 [vllm@sha256:d]"},
    "model": {"digest": "0f", "size": 9},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir(mode=0o755)
    (folder / "config.json").write_text('{"architectures": ["A"]}', encoding="utf-8")
    header = json.dumps({"w": {"data_offsets": [0, 1]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"x")
    return folder


def look(folder: Path, monkeypatch: pytest.MonkeyPatch, identity: ImageIdentity | None = IDENTITY) -> dict[str, Any]:
    monkeypatch.setattr(staging_look.Engine, "ask", lambda _run: None)
    monkeypatch.setattr(staging_look, "full_identity", lambda *_arguments: identity)
    return staging_look.look("img", str(folder), {"architecture": "A"}, lambda _argv: CommandResult(0, "names", ""))


def test_what_is_there_is_seen(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(model, monkeypatch)
    assert seen["image"] == {"identity": IDENTITY.as_dict(), "names": "names"}
    assert seen["model"]["size"] == sum(path.stat().st_size for path in model.iterdir())


def test_a_missing_image(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(model, monkeypatch, identity=None)["image"] is None


@pytest.mark.parametrize("damage", ["cut", "gone", "another model", "closed"])
def test_a_model_that_needs_staging(model: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    weights = model / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "gone":
        weights.unlink()
    elif damage == "another model":
        (model / "config.json").write_text('{"architectures": ["B"]}', encoding="utf-8")
    else:
        monkeypatch.setattr(staging_look, "unreadable", lambda _folder: [weights])
    assert look(model, monkeypatch)["model"] is None


def _changed(part: str, name: str, value: Any) -> dict[str, Any]:
    seen = copy.deepcopy(SEEN)
    (seen[part]["identity"] if name in seen[part].get("identity", ()) else seen[part])[name] = value
    return seen


@pytest.mark.parametrize(
    ("worker", "digest", "same"),
    [
        (SEEN, "", True),
        (SEEN, "sha256:d", True),
        # The id differs between image stores.
        (_changed("image", "id", "sha256:2"), "", True),
        (SEEN, "sha256:e", False),
        (_changed("image", "layers", ["sha256:a"]), "", False),
        (_changed("image", "config", "sha256:f"), "", False),
        (_changed("model", "digest", "1f"), "", False),
        ({**SEEN, "image": None}, "", False),
        ({**SEEN, "model": None}, "", False),
    ],
)
def test_all_must_have_what_the_head_has(worker: dict[str, Any], digest: str, same: bool) -> None:
    assert staging_look.all_have_the_same({"head": SEEN, "worker": worker}, "head", digest) is same


def test_results_say_that_nothing_was_moved() -> None:
    results = staging_look.as_results(SEEN)
    assert results["weights"]["digest"] == "0f"
    assert not any(result["changed"] or result["bytes_received"] for result in results.values())


def test_the_same_is_asked_once() -> None:
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> CommandResult:
        asked.append(argv)
        return CommandResult(0, str(len(asked)), "")

    ask = once_each(run)
    assert [ask(["docker", "ps"]).stdout, ask(["docker", "info"]).stdout, ask(["docker", "ps"]).stdout] == [
        "1",
        "2",
        "1",
    ]
