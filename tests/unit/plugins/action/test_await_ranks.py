"""How the waits of several hosts hang together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.action.await_ranks import ActionModule
from ansible_collections.dgxspark.serving.plugins.module_utils._rank_watch import RankWatch
from ansible_collections.dgxspark.serving.plugins.plugin_utils import _run_log


def wait_of(host: str, peer: str) -> ActionModule:
    wait = object.__new__(ActionModule)
    wait._topic, wait._host, wait._peers = "engine", {"name": host}, [peer]
    wait._log = _run_log.RunLog("run")
    return wait


@pytest.fixture(autouse=True)
def runs_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(_run_log, "RUNS_FOLDER", tmp_path)
    (tmp_path / "run").mkdir()


def test_a_silent_worker_waits_as_long_as_the_head_moves() -> None:
    head, worker = wait_of("head", "worker"), wait_of("worker", "head")
    of_head, of_worker = RankWatch(0.0, 180.0, 600.0), RankWatch(0.0, 180.0, 600.0)
    of_head.take_lines(["Loading weights took 3 s"], 150.0)
    head._share_progress(of_head)
    worker._share_progress(of_worker)
    assert of_worker.overdue(200.0) == ""
    assert of_worker.overdue(331.0) == "no progress for 180 s"


def test_silence_of_all_ends_the_wait() -> None:
    head, worker = wait_of("head", "worker"), wait_of("worker", "head")
    of_head, of_worker = RankWatch(10.0, 180.0, 600.0), RankWatch(10.0, 180.0, 600.0)
    head._share_progress(of_head)
    worker._share_progress(of_worker)
    assert of_worker.overdue(191.0) == of_head.overdue(191.0) == "no progress for 180 s"
