# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the module said on a real H200 while a process held 20 GiB, beside what nvidia-smi printed at that moment.

Recorded: fixtures/h200/module/answers.json. The tests of the parsers replay the tools' answers; this one holds the module's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ANSWERS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "h200" / "module" / "answers.json").read_text(encoding="utf-8")
)
MIB = 1 / 1024


@pytest.mark.parametrize(("answer", "source"), [("module_nvml", "nvml"), ("module_smi", "nvidia-smi")])
def test_both_sources_agree_with_nvidia_smi_to_the_mib(answer: str, source: str) -> None:
    result = ANSWERS[answer]
    assert result["source"] == source
    total, used, free = (int(word) for word in ANSWERS["nvidia_smi_gpu"].split(",")[2:5])
    (gpu,) = result["gpus"]
    for name, mib in (("total_gib", total), ("used_gib", used), ("free_gib", free)):
        assert gpu[name] == pytest.approx(mib * MIB, abs=MIB)
    pid, _process, held = ANSWERS["nvidia_smi_apps"].strip().split(",")
    (holder,) = result["holders"]
    assert holder["pid"] == int(pid)
    assert holder["used_gib"] == pytest.approx(int(held) * MIB, abs=MIB)


def test_both_sources_say_the_same() -> None:
    def without_times(name: str) -> dict[str, Any]:
        return {
            key: value for key, value in ANSWERS[name].items() if key in ("gpus", "holders", "fits", "unattributed_gib")
        }

    assert without_times("module_nvml") == without_times("module_smi")


def test_what_does_not_fit_is_said() -> None:
    assert ANSWERS["module_too_big"]["fits"] is False
    assert [finding["id"] for finding in ANSWERS["module_too_big"]["findings"]] == ["MEMORY.DOES_NOT_FIT"]
