# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The end of a copy, of its run, and of the copy before it, at the wrong moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _progress
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import Source, Target


@pytest.fixture(autouse=True)
def handler_of_the_test_runner() -> Iterator[None]:
    known = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, known)


def test_a_copy_that_ends_while_it_writes_neither_ends_itself_nor_leaves_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []
    monkeypatch.setattr(_progress.os, "kill", lambda *arguments: killed.append(arguments))
    monkeypatch.setattr(_progress, "_WRITE_EVERY_SECONDS", 0.01)
    progress = Progress(str(tmp_path / "run-image.json"))
    whole = progress.write

    def slow() -> None:
        time.sleep(0.1)
        whole()

    monkeypatch.setattr(progress, "write", slow)
    end = progress.begin()
    time.sleep(0.05)
    end()
    time.sleep(0.3)
    assert killed == [] and list(tmp_path.iterdir()) == []


def test_a_copy_that_is_told_twice_to_end_tidies_up() -> None:
    program = (
        "import os, signal, sys, time\n"
        "from ansible_collections.dgxspark.serving.plugins.module_utils import _progress\n"
        "signal.signal(signal.SIGTERM, _progress._end_with_an_exception)\n"
        "try:\n"
        "    print('ready', flush=True); time.sleep(30)\n"
        "finally:\n"
        "    print('tidying up', flush=True); time.sleep(1); print('tidy', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "tidying up\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == "tidy\n"
    process.wait(timeout=30)


def test_the_offer_of_another_run_is_waited_out() -> None:
    offers = {"manifest": lambda: iter([b'{"mine": 1}'])}
    old = Source("127.0.0.1", 0, "token-of-another-run", offers)
    port = old._server.server_address[1]
    old.__enter__()
    target = Target("worker", "127.0.0.1", port, "token")
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(target.fetch_manifest()))
    thread.start()
    time.sleep(0.8)
    assert answers == []
    old.__exit__()
    with Source("127.0.0.1", port, "token", offers):
        thread.join(timeout=20)
    assert answers == [b'{"mine": 1}']
