# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _probe_cache as probe_cache
from ansible_collections.dgxspark.serving.plugins.module_utils._image_probe import Contents
from ansible_collections.dgxspark.serving.plugins.module_utils._import_probe import Imported
from ansible_collections.dgxspark.serving.plugins.module_utils._model_registry import Registry

KEY = {"id": "sha256:1", "architectures": ["A"]}


def contents(version: str = "0.17.1") -> Contents:
    return Contents(
        engine="vllm",
        engine_version=version,
        versions={"ray": None},
        registry=Registry({"A": "model"}, {}, True),
        imported=Imported(["A"]),
        model_types={"llama"},
    )


@pytest.fixture
def cache(tmp_path: Path) -> probe_cache.ProbeCache:
    return probe_cache.ProbeCache(str(tmp_path / "cache"), "1")


def test_what_was_put_comes_back(cache: probe_cache.ProbeCache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, contents())
    assert cache.get(KEY) == contents()
    assert cache.get({**KEY, "id": "sha256:2"}) is None
    cache.put(KEY, Contents())
    assert cache.get(KEY) == Contents()


def test_another_version_of_the_module_starts_anew(cache: probe_cache.ProbeCache) -> None:
    cache.put(KEY, contents())
    assert probe_cache.ProbeCache(cache.folder, "2").get(KEY) is None


def test_fingerprint_is_that_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    found = set()
    for number, text in enumerate(("x = 1\n", "x = 2\n")):
        (tmp_path / f"decisive{number}.py").write_text(text)
        found.add(probe_cache.fingerprint([__import__(f"decisive{number}")]))
    assert len(found) == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}', "null"])
def test_damaged_file_is_as_good_as_none(cache: probe_cache.ProbeCache, damage: str) -> None:
    cache.put(KEY, contents())
    (path,) = Path(cache.folder).iterdir()
    path.write_text(damage)
    assert cache.get(KEY) is None
    cache.put(KEY, contents())
    assert cache.get(KEY) == contents()


def test_entry_with_unknown_fields_is_as_good_as_none(cache: probe_cache.ProbeCache) -> None:
    cache.put(KEY, contents())
    (path,) = Path(cache.folder).iterdir()
    kept = json.loads(path.read_text())
    kept["contents"]["newer"] = 1
    path.write_text(json.dumps(kept))
    assert cache.get(KEY) is None


def test_nothing_is_written_in_check_mode_or_without_a_folder(tmp_path: Path) -> None:
    for cache in (probe_cache.ProbeCache(str(tmp_path / "c"), "1", writable=False), probe_cache.ProbeCache("", "1")):
        cache.put(KEY, contents())
        assert cache.get(KEY) is None
    assert list(tmp_path.iterdir()) == []


def test_folder_that_others_may_write_to_is_not_used(cache: probe_cache.ProbeCache) -> None:
    os.mkdir(cache.folder)
    os.chmod(cache.folder, 0o777)
    cache.put(KEY, contents())
    assert os.listdir(cache.folder) == []


def test_folder_that_cannot_be_made_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = probe_cache.ProbeCache(str(tmp_path / "file/cache"), "1")
    cache.put(KEY, contents())
    assert cache.get(KEY) is None


def test_the_least_recently_used_go(cache: probe_cache.ProbeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_cache, "MOST_ENTRIES", 3)
    keys = [{"id": str(number)} for number in range(5)]
    for age, key in enumerate(keys[:3]):
        cache.put(key, contents())
        os.utime(cache._path({**key}), (1000 + age, 1000 + age))
    assert cache.get(keys[0])
    for key in keys[3:]:
        cache.put(key, contents())
    assert [cache.get(key) is not None for key in keys] == [True, False, False, True, True]


def _hammer(folder: str, number: int) -> int:
    """How often an answer was wrong."""
    cache = probe_cache.ProbeCache(folder, "1")
    wrong = 0
    for turn in range(40):
        key = {"id": str((number + turn) % 8)}
        found = cache.get(key)
        wrong += found is not None and found != contents(key["id"])
        cache.put(key, contents(key["id"]))
    return wrong


def test_many_runs_at_once(cache: probe_cache.ProbeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_cache, "MOST_ENTRIES", 4)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        wrong = pool.starmap(_hammer, [(cache.folder, number) for number in range(4)])
    assert wrong == [0] * 4
    names = os.listdir(cache.folder)
    assert len(names) <= 4 and not [name for name in names if name.startswith(".")]
