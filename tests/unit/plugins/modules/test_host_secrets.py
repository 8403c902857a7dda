# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.dgxspark.serving.plugins.modules import host_secrets


def test_a_secret_is_made_once_and_read_afterwards(run_module, tmp_path):
    path = tmp_path / "dgxspark" / "token"
    would = run_module(host_secrets, check_mode=True, lengths={str(path): 64})
    assert (would["changed"], would["secrets"]) == (True, {})
    assert not path.exists()
    first = run_module(host_secrets, lengths={str(path): 64})
    assert first["changed"] and len(first["secrets"][str(path)]) == 64 and first["secrets"][str(path)].isalnum()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o400, 0o750)
    again = run_module(host_secrets, lengths={str(path): 64})
    assert not again["changed"] and again["secrets"] == first["secrets"]


def test_an_empty_file_is_no_secret(run_module, tmp_path):
    (tmp_path / "token").touch()
    assert run_module(host_secrets, lengths={str(tmp_path / "token"): 48})["changed"]


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        ({"/nowhere/token": 16}, "lengths has /nowhere/token: 16; a secret needs at least 32 characters."),
        ({"/nowhere/token": "long"}, "lengths must have a number for each path"),
        ({"/proc/nowhere/token": 48}, "Cannot make a secret of the deployment"),
    ],
)
def test_bad_input(run_module, lengths, text):
    result = run_module(host_secrets, lengths=lengths)
    assert result["failed"] and text in result["msg"]
