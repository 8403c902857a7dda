# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The record of a run on the control node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.dgxspark.serving.plugins.plugin_utils import _run_log


def test_a_run_whose_clock_was_put_back_keeps_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run_log, "RUNS_FOLDER", tmp_path)
    for number in range(_run_log.KEPT_RUNS + 1):
        # In the next century.
        folder = tmp_path / f"21000101T0000{number:02}-0000"
        folder.mkdir()
        os.utime(folder, (number, number))
    log = _run_log.RunLog.new()
    assert (log.folder / "token").exists()
    assert len(list(tmp_path.iterdir())) == _run_log.KEPT_RUNS
    assert not (tmp_path / "21000101T000000-0000").exists()
