# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The head's download, with the real huggingface_hub, from a server that behaves like the hub."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _hub_download as hub_download
from ansible_collections.dgxspark.serving.plugins.module_utils._hub_cache import find_complete, mount_of
from ansible_collections.dgxspark.serving.plugins.module_utils._hub_download import (
    HubSource,
    copy_from,
    download,
    size_at,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import ModelFolderError, examine
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.module_utils._weights_sync import checksums, hub_checksums, verified
from conftest import make_model
from hub_server import COMMIT, Hub, HubServer


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


def get(hub: Hub, folder: Path, token: str = "") -> list[int]:
    totals: list[int] = []
    with HubServer(hub) as server:
        source = HubSource(hub.repository, endpoint=server.url, token=token)
        download(source, str(folder), Progress(), totals.append, pause=lambda _seconds: None)
    return totals


def test_a_model_is_downloaded_and_is_what_the_hub_has(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    totals = get(Hub(model), target)
    found = examine(str(target))
    assert found.digest == examine(str(model)).digest
    assert totals == [found.size]
    # The hub's own SHA-256 of the shards is known afterwards, and compared.
    assert len(hub_checksums(str(target), found)) == 3
    assert verified(str(target), found) == checksums(str(model), examine(str(model)))


def test_a_second_run_gets_nothing(model: Path, tmp_path: Path) -> None:
    hub = Hub(model)
    get(hub, tmp_path / "target")
    before = hub.sent
    get(hub, tmp_path / "target")
    assert hub.sent == before


def test_a_connection_that_is_cut_goes_on_where_it_broke(tmp_path: Path) -> None:
    # huggingface_hub writes 10 MB at a time.
    model = make_model(tmp_path / "large", 1, 60_000_000)
    hub = Hub(model, cut_after=25_000_000, cuts=2)
    get(hub, tmp_path / "target")
    assert examine(str(tmp_path / "target")).digest == examine(str(model)).digest
    assert len(hub.ranges) >= 2, "no request for the rest of a file"
    assert hub.sent < 1.3 * examine(str(model)).size


def test_a_hub_that_is_busy_is_asked_again(model: Path, tmp_path: Path) -> None:
    hub = Hub(model, busy=3)
    get(hub, tmp_path / "target")
    assert examine(str(tmp_path / "target")).digest == examine(str(model)).digest


def test_a_hub_that_wants_a_token_says_so_and_gets_it_in_no_command_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(model, token="hf_secret")
    with pytest.raises(ModelFolderError, match=r"does not give lab/model .*spark_hub_token") as caught:
        get(hub, tmp_path / "target")
    assert "hf_secret" not in str(caught.value)
    started: list[Any] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        hub_download.subprocess, "Popen", lambda argv, **more: started.append(argv) or popen(argv, **more)
    )
    get(hub, tmp_path / "target", token="hf_secret")
    assert examine(str(tmp_path / "target")).digest == examine(str(model)).digest
    assert started
    assert not any("hf_secret" in word for argv in started for word in argv)


def test_a_model_that_the_hub_does_not_have(model: Path, tmp_path: Path) -> None:
    with HubServer(Hub(model)) as server, pytest.raises(ModelFolderError, match="does not give lab/other"):
        size_at(HubSource("lab/other", endpoint=server.url))


def test_a_hub_that_is_not_there_is_tried_and_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"could not be downloaded from http://127\.0\.0\.1:9"):
        size_at(HubSource("lab/model", endpoint="http://127.0.0.1:9"))


def test_a_head_without_the_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "bin" / "python3"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(hub_download.sys, "executable", str(bare))
    with pytest.raises(ModelFolderError, match="pip install huggingface_hub"):
        size_at(HubSource("lab/model"))


def test_half_a_file_never_has_its_name(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_download, "TRIES", 1)
    target = tmp_path / "target"
    # huggingface_hub itself gives up after five.
    with pytest.raises(ModelFolderError, match="what has arrived is kept"):
        get(Hub(model, cut_after=10_000, cuts=1000), target)
    assert [path.name for path in target.glob("*.safetensors")] == []
    get(Hub(model), target)
    assert examine(str(target)).digest == examine(str(model)).digest


def test_a_folder_is_a_source(model: Path, tmp_path: Path) -> None:
    totals: list[int] = []
    copy_from(str(model), str(tmp_path / "target"), Progress(), totals.append)
    assert examine(str(tmp_path / "target")).digest == examine(str(model)).digest


def test_a_cache_of_the_hub_is_used_where_it_is(model: Path, tmp_path: Path) -> None:
    with HubServer(Hub(model)) as server:
        script = f"import huggingface_hub as h; h.snapshot_download('lab/model', cache_dir={str(tmp_path / 'cache')!r})"
        environment = {"HF_ENDPOINT": server.url, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PATH": "/usr/bin"}
        subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    found = find_complete("lab/model", [str(tmp_path / "cache")])
    assert found is not None
    assert found.folder == f"{tmp_path}/cache/models--lab--model/snapshots/{COMMIT}"
    assert found.mount == mount_of(found.folder) == f"{tmp_path}/cache/models--lab--model"
    assert len(hub_checksums(found.folder, examine(found.folder))) == 3
    next(Path(found.folder).glob("*.safetensors")).unlink()
    assert find_complete("lab/model", [str(tmp_path / "cache")]) is None
