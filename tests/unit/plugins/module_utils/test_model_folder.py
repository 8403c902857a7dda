"""A model folder is judged by its content; a copy over a real rsync daemon on the loopback is complete or refused."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _model_folder as model_folder
from ansible_collections.dgxspark.serving.plugins.module_utils import _rendezvous as rendezvous
from ansible_collections.dgxspark.serving.plugins.module_utils import _weights_copy as weights_copy
from ansible_collections.dgxspark.serving.plugins.module_utils._hub_cache import mount_of
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import (
    ModelFolderError,
    differing_facts,
    examine,
    unreadable,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import Source, Target
from ansible_collections.dgxspark.serving.plugins.module_utils._weights_copy import (
    Entry,
    entries_of,
    keep_unfinished,
    shares,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._weights_sync import (
    Offering,
    Ways,
    checksums,
    fetch,
    serve,
)

CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {"num_attention_heads": 32, "num_key_value_heads": 2, "max_position_embeddings": 262144},
}


def safetensors(data: bytes, tensor: str = "w") -> bytes:
    header = json.dumps({tensor: {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    for number in (1, 2):
        (folder / f"model-{number}.safetensors").write_bytes(safetensors(bytes([number]) * 5000, "ab"[number - 1]))
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
    elif how == "index of another version":
        index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
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
        ("index of another version", "says that b is in model-1.safetensors, which does not hold it"),
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


def copy(
    source: Path, target: Path, check_mode: bool = False, token: str = "t" * 32, checksum: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Head and worker on the loopback: (what the worker says, the reports that the head got)."""
    ports = (free_port(), free_port())
    reports: dict[str, Any] = {}

    def obtain(_offering: Offering) -> Any:
        model = examine(str(source))
        return model, checksums(str(source), model) if checksum else {}

    def head() -> None:
        ways = Ways("127.0.0.1", ports, "t" * 32, {"worker": "127.0.0.1"})
        reports.update(serve(str(source), ways, obtain)[1])

    thread = threading.Thread(target=head)
    thread.start()
    try:
        worker = Target("worker", "127.0.0.1", ports[0], token)
        fetched = fetch(str(target), worker, ports[1], token, check_mode, Progress())
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
    assert again.bytes_received == 0


@needs_rsync
@pytest.mark.parametrize("how", ["truncated shard", "missing shard", "wrong index", "no config"])
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


def test_a_worker_without_the_token_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "OFFER_WAIT_SECONDS", 0.3)
    port = free_port()
    with Source("127.0.0.1", port, "right", {"manifest": lambda: iter([b"{}"])}):
        with pytest.raises(Exception, match="refuses /manifest with status 403"):
            Target("worker", "127.0.0.1", port, "wrong").fetch("manifest")
        assert Target("worker", "127.0.0.1", port, "right").fetch("manifest").read() == b"{}"


@needs_rsync
def test_the_port_of_a_daemon_that_is_about_to_end_is_waited_for(model: Path) -> None:
    port = free_port()
    held = socket.create_server(("127.0.0.1", port))
    threading.Timer(0.7, held.close).start()
    with weights_copy.rsync_daemon(str(model), "127.0.0.1", port, "token", ["127.0.0.1"]):
        assert socket.create_connection(("127.0.0.1", port), timeout=5).recv(8) == b"@RSYNCD:"


@needs_rsync
def test_a_port_that_stays_taken_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_copy, "DAEMON_START_SECONDS", 0.3)
    with (
        socket.create_server(("127.0.0.1", 0)) as held,
        pytest.raises(ModelFolderError, match=r"does not listen at 127\.0\.0\.1:.*unable to bind"),
        weights_copy.rsync_daemon(str(model), "127.0.0.1", held.getsockname()[1], "token", ["127.0.0.1"]),
    ):
        pass


def test_a_head_gives_up_on_a_silent_worker() -> None:
    with (
        Source("127.0.0.1", free_port(), "t", {}) as source,
        pytest.raises(Exception, match=r"No word from worker for 0 s"),
    ):
        source.wait_for(["worker"], silence_limit=0.3)


def test_a_missing_rsync_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelFolderError, match="rsync is not installed on this host"):
        weights_copy.copy(str(tmp_path / "m"), "127.0.0.1", 1, "t", [Entry("a", 1, 0)])


def test_a_full_disk_is_named_before_anything_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(model_folder.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(ModelFolderError, match=r"needs 122\.0 GB in .*, where 1\.0 GB are free"):
        model_folder.room_for(str(tmp_path / "not" / "there"), 122 * 10**9)


@needs_rsync
def test_only_what_differs_is_copied(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(model, target)
    damage(target, "missing shard")
    fetched, _reports = copy(model, target)
    assert fetched.bytes_to_copy == (model / "model-2.safetensors").stat().st_size
    # The file, and what rsync says about it.
    assert 0 < fetched.bytes_received < fetched.bytes_to_copy + 2000


@needs_rsync
def test_a_silent_change_is_found_by_checksums(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(model, target)
    path = target / "model-2.safetensors"
    times = (path.stat().st_atime, path.stat().st_mtime)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, times)
    assert not copy(model, target)[0].changed
    assert copy(model, target, checksum=True)[0].changed
    assert path.read_bytes() == content


@needs_rsync
def test_a_snapshot_of_a_hub_cache_keeps_its_links(model: Path, tmp_path: Path) -> None:
    repository = tmp_path / "head" / "models--lab--model"
    snapshot = repository / "snapshots" / "0123"
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(model.iterdir())):
        shutil.copy(path, repository / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    (repository / "blobs" / "of-another-revision").write_bytes(b"x" * 1000)
    target = tmp_path / "worker" / "models--lab--model" / "snapshots" / "0123"
    assert mount_of(str(target)) == str(tmp_path / "worker" / "models--lab--model")
    fetched, _reports = copy(snapshot, target)
    assert fetched.changed
    assert examine(str(target)).digest == examine(str(model)).digest
    assert os.readlink(target / "config.json").startswith("../../blobs/")
    assert not (target.parents[1] / "blobs" / "of-another-revision").exists()
    assert not copy(snapshot, target)[0].changed
    (target.parents[1] / "blobs" / "2").unlink()
    assert copy(snapshot, target)[0].changed


def test_a_link_that_leads_out_of_the_model_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"x")
    (model / "extra.bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelFolderError, match="it would lead nowhere on another host"):
        entries_of(str(model), str(model))


@needs_rsync
def test_workers_hear_at_once_that_the_head_has_nothing(model: Path, tmp_path: Path) -> None:
    damage(model, "truncated shard")
    ports = (free_port(), free_port())
    errors: list[str] = []

    def head() -> None:
        ways = Ways("127.0.0.1", ports, "t", {"worker": "127.0.0.1"})
        try:
            serve(str(model), ways, lambda _offering: (examine(str(model)), {}))
        except ModelFolderError as error:
            errors.append(str(error))

    thread = threading.Thread(target=head)
    thread.start()
    with pytest.raises(Exception, match="cut off or damaged"):
        fetch(str(tmp_path / "t"), Target("worker", "127.0.0.1", ports[0], "t"), ports[1], "t", False, Progress())
    thread.join(timeout=30)
    assert "cut off or damaged" in errors[0]


@needs_rsync
def test_what_is_finished_is_copied_while_the_rest_still_arrives(model: Path, tmp_path: Path) -> None:
    arriving = tmp_path / "arriving"
    arriving.mkdir()
    shutil.copy(model / "model-1.safetensors", arriving)
    target = tmp_path / "target"
    seen: list[bool] = []
    ports = (free_port(), free_port())

    def obtain(offering: Offering) -> Any:
        offering.total = examine(str(model)).size
        deadline = time.monotonic() + 20
        while not (target / "model-1.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        seen.append((target / "model-1.safetensors").exists())
        shutil.copytree(model, arriving, dirs_exist_ok=True)
        return examine(str(arriving)), {}

    ways = Ways("127.0.0.1", ports, "t", {"worker": "127.0.0.1"})
    thread = threading.Thread(target=lambda: serve(str(arriving), ways, obtain))
    thread.start()
    fetched = fetch(str(target), Target("worker", "127.0.0.1", ports[0], "t"), ports[1], "t", False, Progress())
    thread.join(timeout=30)
    assert seen == [True]
    assert fetched.changed
    assert examine(str(target)).digest == examine(str(model)).digest


def test_streams_get_about_the_same() -> None:
    parts = shares([Entry(str(size), size, 0) for size in (50, 40, 30, 30, 20, 10)], 3)
    assert [sum(entry.size for entry in part) for part in parts] == [60, 60, 60]
    assert shares([], 3) == [[]]


def test_what_a_killed_rsync_left_is_gone_on_with(tmp_path: Path) -> None:
    scratch = tmp_path / ".incoming"
    scratch.mkdir()
    (scratch / "blob.aB3xYz").write_bytes(b"half")
    (scratch / ".other.aB3xYz").write_bytes(b"nobody's")
    keep_unfinished(str(tmp_path), [Entry("blobs/blob", 8, 0)])
    assert (tmp_path / "blobs" / ".partial" / "blob").read_bytes() == b"half"
    assert list(scratch.iterdir()) == []


def test_what_the_container_could_not_read_is_named_and_opened(model: Path) -> None:
    (model / "config.json").chmod(0o600)
    mine = os.getuid() == 0
    if mine:
        os.chown(model / "config.json", 1000, 1000)
    found = unreadable(str(model))
    assert [item.path for item in found] == [str(model / "config.json")]
    model_folder.make_readable(found)
    assert unreadable(str(model)) == []
