# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the engine itself says, against its files; the run in a container is tested with real engines (tests/registry)."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._image_probe import Contents
from ansible_collections.dgxspark.serving.plugins.module_utils._image_verdict import (
    Wishes,
    judge,
    judge_architectures,
    runs_on,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._import_probe import Imported
from ansible_collections.dgxspark.serving.plugins.module_utils._model_registry import Registry

KINDS = {"A": "model", "AMTP": "draft", "Old": "removed"}


def contents(imported: Imported | None, **more: Any) -> Contents:
    return Contents(
        engine="vllm", engine_version="0.32.0", registry=Registry(KINDS, {"Old": "0.9.2"}), imported=imported, **more
    )


def ids(found: Contents, *architectures: str, **wishes: Any) -> list[str]:
    return [finding.id for finding in judge("img", found, Wishes(architectures=architectures, **wishes))]


@pytest.mark.parametrize(
    "said, expected",
    [
        (Imported(["A", "AMTP"]), []),
        (Imported(["A", "AMTP", "B"]), ["REGISTRY.DISAGREEMENT"]),
        (Imported(["AMTP"]), ["REGISTRY.DISAGREEMENT", "REGISTRY.ARCHITECTURE_UNKNOWN"]),
        (Imported(problem="it ended with status 1"), ["REGISTRY.IMPORT_FAILED"]),
        (Imported(["A", "AMTP"], failures=["x", "y"]), ["REGISTRY.IMPORT_INCOMPLETE"]),
    ],
)
def test_engine_and_files(said: Imported, expected: list[str]) -> None:
    assert ids(contents(said), "A") == expected


@pytest.mark.parametrize(
    "name, supported, kind, expected",
    [
        ("AMTP", False, "draft", ["REGISTRY.DRAFT_ONLY"]),
        ("Raven", True, "plugin", []),
        ("Old", False, "removed", ["REGISTRY.ARCHITECTURE_REMOVED"]),
        ("None", False, "plugin", ["REGISTRY.ARCHITECTURE_UNKNOWN"]),
    ],
)
def test_answer_of_the_engine_settles_what_plugins_leave_open(
    name: str, supported: bool, kind: str, expected: list[str]
) -> None:
    found = contents(Imported(["A", "AMTP", "Raven"]), plugins={"raven": "raven:register"})
    verdicts, _closest = judge_architectures(found, Wishes(architectures=(name,)))
    assert (verdicts[name]["supported"], verdicts[name]["kind"]) == (supported, kind)
    assert ids(found, name) == expected


@pytest.mark.parametrize(
    "archs, gpu, expected",
    [
        (["12.1a"], (12, 1), True),
        (["12.0"], (12, 1), True),
        (["12.0a"], (12, 1), False),
        (["12.0f"], (12, 1), True),
        (["sm_90", "sm_120"], (12, 1), True),
        (["sm_90", "sm_100"], (12, 1), False),
        (["9.0+PTX"], (12, 1), True),
        (["9.0", "compute_90"], (12, 1), True),
        (["sm_121"], (12, 0), False),
        (["nonsense"], (12, 1), False),
    ],
)
def test_which_gpus_an_image_is_built_for(archs: list[str], gpu: tuple[int, int], expected: bool) -> None:
    assert runs_on(archs, gpu) is expected
    found = contents(None, gpu_archs={"torch": archs}, versions={"torch": "2.11.0", "cuda": "13.0"})
    assert ids(found, gpu_arch=gpu) == ([] if expected else ["IMAGE.GPU_ARCH"])
