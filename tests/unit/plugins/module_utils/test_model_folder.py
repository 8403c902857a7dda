"""A model folder is judged by its content; a copy over a real rsync daemon on the loopback is complete or refused."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _model_folder as model_folder
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import (
    ModelFolderError,
    differing_facts,
    examine,
    fetch,
    serve,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import Source, Target

CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {"num_attention_heads": 32, "num_key_value_heads": 2, "max_position_embeddings": 262144},
}


def safetensors(data: bytes) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    for number in (1, 2):
        (folder / f"model-{number}.safetensors").write_bytes(safetensors(bytes([number]) * 5000))
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def test_a_complete_folder(model: Path) -> None:
    found = examine(str(model))
    assert set(found.files) == {
        "config.json",
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
    }
    assert found.digest == examine(str(model)).digest


def damage(model: Path, how: str) -> None:
    if how == "no config":
        (model / "config.json").unlink()
    elif how == "config is a list":
        (model / "config.json").write_text("[]", encoding="utf-8")
    elif how == "missing shard":
        (model / "model-2.safetensors").unlink()
    elif how == "truncated shard":
        path = model / "model-2.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    elif how == "empty shard":
        (model / "model-2.safetensors").write_bytes(b"")
    elif how == "wrong index":
        (model / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    elif how == "no weights":
        for path in model.glob("model*"):
            path.unlink()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no config", "holds no config.json"),
        ("config is a list", "holds no dictionary"),
        ("missing shard", "model-2.safetensors is missing"),
        ("truncated shard", "the file is cut off or damaged"),
        ("empty shard", "is not a complete safetensors file (0 bytes)"),
        ("wrong index", "model.safetensors.index.json cannot be read"),
        ("no weights", "model.safetensors is missing"),
    ],
)
def test_each_damage_is_named(model: Path, how: str, words: str) -> None:
    damage(model, how)
    with pytest.raises(ModelFolderError) as caught:
        examine(str(model))
    assert words in str(caught.value)


def test_other_weights_of_the_same_size_have_another_digest_only_if_their_header_differs(model: Path) -> None:
    # The digest reads headers, not 122 GB: this is its limit, and the SHA-256 against the hub is a separate check.
    before = examine(str(model)).digest
    (model / "chat_template.jinja").write_text("x", encoding="utf-8")
    assert examine(str(model)).digest != before


def test_facts_that_differ_are_named() -> None:
    facts = {"architecture": "Qwen3_5MoeForConditionalGeneration", "attention_heads": 16, "key_value_heads": 2}
    assert differing_facts(CONFIG, facts) == ["attention_heads is 32, the preset says 16"]
    assert differing_facts({**CONFIG, "architectures": ["Other"]}, facts)[0].startswith("architecture is 'Other'")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def copy(source: Path, target: Path, check_mode: bool = False, token: str = "t" * 32) -> tuple[Any, dict[str, Any]]:
    """Head and worker on the loopback: (what the worker says, the reports that the head got)."""
    ports = (free_port(), free_port())
    reports: dict[str, Any] = {}

    def head() -> None:
        reports.update(serve(str(source), examine(str(source)), "127.0.0.1", ports, "t" * 32, {"worker": "127.0.0.1"}))

    thread = threading.Thread(target=head)
    thread.start()
    try:
        fetched = fetch(str(target), Target("worker", "127.0.0.1", ports[0], token), ports[1], token, check_mode)
    finally:
        thread.join(timeout=30)
    return fetched, reports


needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed on this machine")


@needs_rsync
def test_a_worker_gets_the_whole_model_once(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "worker" / "model"
    fetched, reports = copy(model, target)
    assert fetched.changed
    assert reports["worker"]["changed"] is True
    assert examine(str(target)).digest == examine(str(model)).digest
    again, _reports = copy(model, target)
    assert not again.changed


@needs_rsync
@pytest.mark.parametrize("how", ["truncated shard", "missing shard", "wrong index"])
def test_a_damaged_copy_is_repaired(model: Path, tmp_path: Path, how: str) -> None:
    target = tmp_path / "target"
    shutil.copytree(model, target)
    damage(target, how)
    (target / "left-over.bin").write_bytes(b"x")
    fetched, _reports = copy(model, target)
    assert fetched.changed
    assert examine(str(target)).digest == examine(str(model)).digest


@needs_rsync
def test_check_mode_copies_nothing_and_says_how_much(model: Path, tmp_path: Path) -> None:
    fetched, _reports = copy(model, tmp_path / "target", check_mode=True)
    assert fetched.changed
    assert fetched.bytes_to_copy == examine(str(model)).size
    assert not (tmp_path / "target").exists()


def test_a_worker_without_the_token_gets_nothing() -> None:
    port = free_port()
    with Source("127.0.0.1", port, "right", {"manifest": lambda: iter([b"{}"])}):
        with pytest.raises(Exception, match="refuses /manifest with status 403"):
            Target("worker", "127.0.0.1", port, "wrong").fetch("manifest")
        assert Target("worker", "127.0.0.1", port, "right").fetch("manifest").read() == b"{}"


def test_a_head_gives_up_on_a_silent_worker() -> None:
    with (
        Source("127.0.0.1", free_port(), "t", {}) as source,
        pytest.raises(Exception, match=r"No word from worker for 0 s"),
    ):
        source.wait_for(["worker"], silence_limit=0.3)


def test_a_missing_rsync_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelFolderError, match="rsync is not installed on this host"):
        model_folder._rsync(str(tmp_path / "m"), "127.0.0.1", 1, "t")


def test_a_full_disk_is_named_before_anything_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(model_folder.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(ModelFolderError, match=r"needs 122\.0 GB in .*, where 1\.0 GB are free"):
        model_folder._check_room(str(tmp_path / "not" / "there"), 122 * 10**9)
