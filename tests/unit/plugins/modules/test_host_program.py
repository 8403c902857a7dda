# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import subprocess
import sys

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_program
from ansible_collections.dgxspark.serving.plugins.modules import host_program


@pytest.mark.parametrize("name", ["dgxspark-memguard", "dgxspark-canary"])
def test_a_program_is_installed_once_and_runs_alone(name, run_module, monkeypatch, tmp_path):
    monkeypatch.setattr(_host_program, "PROGRAM_FOLDER", str(tmp_path))
    path = tmp_path / f"{name}.pyz"
    assert run_module(host_program, name=name, check_mode=True)["changed"] and not path.exists()
    result = run_module(host_program, name=name)
    assert (result["changed"], result["path"]) == (True, str(path))
    assert not run_module(host_program, name=name)["changed"]
    assert not run_module(host_program, name=name, check_mode=True)["changed"]
    done = subprocess.run(
        [sys.executable, "-I", str(path), "--help"], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0 and name in done.stdout


def test_a_folder_that_cannot_be_written(run_module, monkeypatch):
    monkeypatch.setattr(_host_program, "PROGRAM_FOLDER", "/proc/nowhere")
    result = run_module(host_program, name="dgxspark-canary")
    assert result["failed"] and "Cannot install dgxspark-canary" in result["msg"]
