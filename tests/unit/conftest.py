# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

FIXTURES = Path(__file__).parent / "fixtures"

# Runs main() of a module with options and returns what it printed as JSON.
RunModule = Callable[..., dict[str, Any]]


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str]) -> RunModule:
    def run(module: Any, check_mode: bool = False, **options: Any) -> dict[str, Any]:
        with patch_module_args({**options, "_ansible_check_mode": check_mode}), pytest.raises(SystemExit):
            module.main()
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        return printed

    return run


@pytest.fixture
def case_text() -> Callable[[str, str], str]:
    """The text of a file of a case that is named by its number: case_text("030", "meminfo.txt")."""

    def read(number: str, name: str) -> str:
        (folder,) = (FIXTURES / "cases").glob(f"{number}-*")
        return (folder / f"input.{name}").read_text(encoding="utf-8")

    return read
