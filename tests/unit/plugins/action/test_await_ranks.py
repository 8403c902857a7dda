"""How the waits of several hosts hang together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.dgxspark.serving.plugins.action.await_ranks import ActionModule
from ansible_collections.dgxspark.serving.plugins.module_utils._rank_watch import READY, RankWatch
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


class Waited(ActionModule):  # type: ignore[misc]
    """A wait that is over; looks are counted, and answered with `look`."""

    def __init__(self, **arguments: Any) -> None:
        host = {"name": "head", "role": "head", "control_address": "10.0.0.1", "gpus": 1}
        common = {
            "what": "engine",
            "run": "run",
            "host": host,
            "hosts": [host],
            "progress_seconds": 1,
            "total_seconds": 2,
        }
        self._task = SimpleNamespace(args={**common, **arguments}, check_mode=False, async_val=0)
        self.look: dict[str, Any] = {"cursor": "", "lines": [], "units": []}
        self.looks: list[int] = []

    def _wait(self, watch: RankWatch, task_vars: Any) -> tuple[str, str]:
        return READY, "the API answers"

    def _look(self, cursor: str, since: float, task_vars: Any) -> Any:
        self.looks.append(self._restore_seconds)
        return self.look


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> type[Waited]:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    return Waited


def test_the_way_back_is_kept_open_for_the_next_gate(waited: type[Waited]) -> None:
    wait = waited(restore_seconds=300, next_seconds=600)
    assert wait.run(None, {})["state"] == READY
    assert wait.looks == [900]


def test_without_a_way_back_there_is_none_to_keep_open(waited: type[Waited]) -> None:
    wait = waited(restore_seconds=0, next_seconds=600)
    assert wait.run(None, {})["state"] == READY
    assert wait.looks == []


def test_a_host_that_has_restored_itself_ends_the_wait(waited: type[Waited]) -> None:
    wait = waited(restore_seconds=300, next_seconds=600)
    wait.look = {"failed": True, "msg": "This host brings back what ran before"}
    result = wait.run(None, {})
    assert result["failed"] and "brings back what ran before" in result["msg"]
    assert wait._log.heard("engine", "head")["state"] == "failed"
