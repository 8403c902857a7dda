# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The tables of rules as tables."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log import PHASES
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_events import NEEDLES, RULES
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_rule import PASSING, Rule, filled
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_verdict import diagnose


def alternatives(parsed: Any) -> list[list[str]]:
    """Of each way through a pattern: the literal texts that it must contain."""
    ways: list[list[str]] = [[""]]
    for operator, argument in parsed:
        name = str(operator)
        if name == "LITERAL":
            ways = [[*way[:-1], way[-1] + chr(argument).lower()] for way in ways]
            continue
        inner: list[list[str]] = [[]]
        if name == "BRANCH":
            inner = [way for branch in argument[1] for way in alternatives(branch)]
        elif name == "SUBPATTERN":
            inner = alternatives(argument[3])
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] > 0:
            inner = alternatives(argument[2])
        # What is no text ends the text before it.
        ways = [
            [*way[:-1], way[-1] + more[0], *more[1:]]
            for way in ways
            for more in ([["", ""]] if inner == [[]] else inner)
        ]
    return ways


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_way_to_match_has_a_needle(rule: Rule) -> None:
    parser = getattr(re, "_parser", None)
    if parser is None:
        pytest.skip("needs Python 3.11")
    without = [
        way
        for way in alternatives(parser.parse(rule.pattern.pattern))
        if not any(needle in text for text in way for needle in NEEDLES)
    ]
    assert without == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_complete(rule: Rule) -> None:
    assert rule.phase in ("", *PHASES)
    if rule.weight not in PASSING and not rule.message:
        assert rule.id == "ENGINE.OOM_LOAD"
    elif rule.message:
        assert filled(rule.message, {}).endswith((".", "unknown")) and rule.remedy


def test_a_long_log_is_read_in_seconds() -> None:
    """10 MiB, more than a start with NCCL_DEBUG=INFO prints."""
    lines = [
        "(EngineCore pid=90) (RayWorkerProc pid=94, ip=192.168.100.12) spark-b:94:94 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via NET/IB/0",
        "2026-05-02T10:00:00+0000 spark-a docker[1]: (EngineCore pid=90) INFO 05-02 10:00:00 [a.py:1] Using cache directory: /root/.cache",
        "(EngineCore pid=90) INFO 05-02 10:00:00 [core.py:1] config: " + "compilation_config={'mode': 3}, " * 100,
    ]
    text = "\n".join(lines * (10 * 1024**2 // sum(map(len, lines))))
    started = time.monotonic()
    assert diagnose([text]).cause is None
    assert time.monotonic() - started < 20
