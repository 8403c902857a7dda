# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time

from ansible_collections.dgxspark.serving.plugins.module_utils._tool import run_tool


def test_answer_and_status() -> None:
    result = run_tool(["sh", "-c", "echo out; echo first >&2; echo last >&2; exit 3"], timeout=10)
    assert (result.ok, result.returncode, result.stdout, result.complaint) == (False, 3, "out\n", "last")


def test_tool_speaks_english() -> None:
    assert run_tool(["sh", "-c", "echo $LC_ALL"], timeout=10).stdout == "C\n"


def test_hanging_tool_and_its_children_are_left_behind() -> None:
    began = time.monotonic()
    result = run_tool(["sh", "-c", "sleep 60 & wait"], timeout=0.2)
    assert time.monotonic() - began < 5
    assert (result.ok, result.timed_out, result.missing) == (False, True, False)


def test_missing_tool() -> None:
    result = run_tool(["/nowhere/tool"], timeout=1)
    assert (result.ok, result.missing) == (False, True)
    assert "No such file" in result.complaint
