# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_program
from ansible_collections.dgxspark.serving.plugins.modules import host_services


@pytest.mark.parametrize("name", ["dgxspark-memguard", "dgxspark-canary", "dgxspark-await-ray", "dgxspark-mp-rank"])
def test_a_program_is_installed_once_and_runs_alone(name, run_module, monkeypatch, tmp_path):
    monkeypatch.setattr(_host_program, "PROGRAM_FOLDER", str(tmp_path))
    path = tmp_path / f"{name}.pyz"
    assert run_module(host_services, programs=[name], check_mode=True)["changed"] and not path.exists()
    result = run_module(host_services, programs=[name])
    assert (result["changed"], result["written"]) == (True, [str(path)])
    assert not run_module(host_services, programs=[name])["changed"]
    assert not run_module(host_services, programs=[name], check_mode=True)["changed"]
    # A host has no Ansible: nothing but the standard library.
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(path), "--help"], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0 and name in done.stdout


def test_a_folder_that_cannot_be_written(run_module, monkeypatch):
    monkeypatch.setattr(_host_program, "PROGRAM_FOLDER", "/proc/nowhere")
    result = run_module(host_services, programs=["dgxspark-canary"])
    assert result["failed"] and "/proc/nowhere" in result["msg"]


def test_files_folders_and_cache_are_made_once(run_module, tmp_path):
    folder, cache = tmp_path / "etc", tmp_path / "cache" / "one"
    options = {
        "folders": {str(folder): "0750"},
        "files": {str(folder / "unit.conf"): "new\n"},
        "initial_files": {str(folder / "run.env"): "RUN=1\n"},
        "secrets": {str(folder / "token"): "planted-secret"},
        "compile_cache": str(cache),
    }
    assert run_module(host_services, check_mode=True, **options)["changed"] and not folder.exists()
    result = run_module(host_services, **options)
    assert set(result["written"]) == {str(folder), str(cache), *(str(folder / name) for name in os.listdir(folder))}
    assert {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.iterdir(), cache]} == {
        "etc": 0o750,
        "unit.conf": 0o644,
        "run.env": 0o640,
        "token": 0o400,
        "one": 0o700,
    }
    assert not run_module(host_services, **options)["changed"]
    # Another run: its environment stays as it is.
    assert not run_module(host_services, **{**options, "initial_files": {str(folder / "run.env"): "RUN=2\n"}})[
        "changed"
    ]


def test_a_difference_is_shown_and_no_secret(run_module, tmp_path):
    (tmp_path / "unit.conf").write_text("old\n")
    result = run_module(
        host_services,
        files={str(tmp_path / "unit.conf"): "new\n"},
        secrets={str(tmp_path / "token"): "planted-secret"},
    )
    (shown,) = result["diff"]
    assert (shown["before"], shown["after"]) == ("old\n", "new\n")
    assert "planted-secret" not in str(result)
    assert (tmp_path / "token").read_text() == "planted-secret"


def test_wrong_mode_alone_is_a_change(run_module, tmp_path):
    path = tmp_path / "unit.conf"
    path.write_text("same\n")
    path.chmod(0o666)
    assert run_module(host_services, files={str(path): "same\n"})["written"] == [str(path)]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_folder_in_the_way_of_a_file_is_said(run_module, tmp_path):
    result = run_module(host_services, files={str(tmp_path): "text"})
    assert result["failed"] and str(tmp_path) in result["msg"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"compile_cache_gib": 0}, "compile_cache_gib is 0; it must be larger than 0."),
        ({"folders": {"/nowhere": "rwx"}}, "rwx"),
        ({"programs": ["sh"]}, "value of programs must be one or more of"),
    ],
)
def test_bad_input(run_module, options, text):
    result = run_module(host_services, **options)
    assert result["failed"] and text in result["msg"]


def test_a_secret_of_the_host_alone_is_made_once_and_never_returned(run_module, tmp_path):
    path = tmp_path / "dgxspark" / "api-key"
    options = {"own_secrets": {str(path): 48}}
    assert run_module(host_services, check_mode=True, **options)["written"] == [str(path)]
    assert not path.exists()
    first = run_module(host_services, **options)
    secret = path.read_text(encoding="utf-8")
    assert first["changed"] and first["written"] == [str(path)]
    assert len(secret) == 48 and secret not in repr(first)
    assert path.stat().st_mode & 0o777 == 0o400
    assert not run_module(host_services, **options)["changed"]
    assert path.read_text(encoding="utf-8") == secret


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        ({"/nowhere/key": 16}, "own_secrets has /nowhere/key: 16; a secret needs at least 32 characters."),
        ({"/nowhere/key": "long"}, "own_secrets must have a number for each path"),
    ],
)
def test_a_secret_that_is_none(run_module, lengths, text):
    result = run_module(host_services, own_secrets=lengths)
    assert result["failed"] and text in result["msg"]
