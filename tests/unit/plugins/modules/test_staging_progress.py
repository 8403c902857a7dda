"""A copy says how far it is; asking keeps it alive; its result is handed over once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _progress
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.modules import remembered_choice, staging_progress


def test_a_copy_that_runs_and_one_that_has_ended(run_module: Any, tmp_path: Path) -> None:
    progress = Progress(str(tmp_path / "run" / "image.json"))
    end = progress.begin()
    progress.enter("image", 100, lambda: 40)
    result = tmp_path / "j1"
    result.write_text(json.dumps({"started": 1, "finished": 0, "ansible_job_id": "j1"}))
    jobs = {"image": {"progress": progress.path, "result": str(result)}}
    found = run_module(staging_progress, jobs=jobs)["jobs"]["image"]
    assert (found["progress"]["phase"], found["progress"]["done"], found["progress"]["total"]) == ("image", 40, 100)
    assert found["result"] is None
    end()
    result.write_text(json.dumps({"changed": True, "bytes_received": 100}))
    found = run_module(staging_progress, jobs=jobs)["jobs"]["image"]
    assert found == {"progress": {}, "result": {"changed": True, "bytes_received": 100}}
    assert list((tmp_path / "run").iterdir()) == []
    assert not result.exists()


def test_one_that_nobody_asks_about_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_progress, "ABANDONED_SECONDS", 0.1)
    monkeypatch.setattr(_progress, "_WRITE_EVERY_SECONDS", 0.05)
    progress = Progress(str(tmp_path / "image.json"))
    with pytest.raises(SystemExit, match="The run has ended"):
        end = progress.begin()
        try:
            time.sleep(5)
        finally:
            end()
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_told_to_end(run_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    result = tmp_path / "j"

    def kill(process: int, number: int) -> None:
        told.append((process, number))
        # What Ansible's wrapper of background tasks makes of a module that ends without a result, a moment later.
        text = json.dumps({"failed": 1, "finished": 1, "msg": "no JSON"})
        threading.Timer(0.3, lambda: result.write_text(text)).start()

    monkeypatch.setattr(os, "kill", kill)
    progress = Progress(str(tmp_path / "image.json"))
    progress.enter("image")
    jobs = {"image": {"progress": progress.path, "result": str(result)}}
    run_module(staging_progress, jobs=jobs)
    assert told == []
    found = run_module(staging_progress, jobs=jobs, end=["image"])["jobs"]["image"]["result"]
    assert told == [(os.getpid(), signal.SIGTERM)]
    # Its end was waited for, and nothing of it is left.
    assert found["msg"] == "no JSON"
    assert not result.exists()


def test_what_an_earlier_run_left_running_is_ended(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit()); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as earlier:
        assert earlier.stdout is not None
        earlier.stdout.readline()
        (tmp_path / "run1-image.json").write_text(json.dumps({"pid": earlier.pid}))
        (tmp_path / "run1-weights.json").write_text(json.dumps({"pid": 1}))
        reaper = threading.Thread(target=earlier.wait)
        reaper.start()
        end = Progress(str(tmp_path / "run2-image.json")).begin()
        reaper.join(timeout=5)
        assert earlier.returncode == 0
        end()
    assert [path.name for path in tmp_path.iterdir()] == ["run1-weights.json"]


def test_a_choice_is_remembered_but_not_in_check_mode(run_module: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "images.json")
    options: dict[str, Any] = {"path": path, "image": "a:1", "digest": "sha256:1", "id": "sha256:2"}
    run_module(remembered_choice, check_mode=True, **options)
    assert not os.path.exists(path)
    run_module(remembered_choice, **options)
    assert run_module(remembered_choice, path=path)["images"] == {"a:1": {"digest": "sha256:1", "id": "sha256:2"}}
    Path(path).write_text("no json")
    assert run_module(remembered_choice, path=path)["images"] == {}
