"""Presets: found by name or path, extended, and refused with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.dgxspark.serving.plugins.action.deployment_plan import (
    PRESETS_FOLDER,
    ActionModule,
    load_preset,
)


@pytest.mark.parametrize("path", sorted(PRESETS_FOLDER.glob("*.yml")), ids=lambda path: path.stem)
def test_each_preset_of_the_collection_loads_under_its_name(path: Path) -> None:
    assert load_preset(path.stem)["name"] == path.stem


def test_a_preset_holds_only_what_differs(tmp_path: Path) -> None:
    own = tmp_path / "own.yml"
    own.write_text(
        "extends: qwen35_122b_fp8\nname: own\nengine: {max_num_seqs: 8}\ncandidates: [{image: x}]\n", encoding="utf-8"
    )
    preset = load_preset(str(own))
    base = load_preset("qwen35_122b_fp8")
    assert preset["engine"]["max_num_seqs"] == 8
    assert preset["engine"]["reasoning_parser"] == base["engine"]["reasoning_parser"]
    assert preset["candidates"] == [{"image": "x"}]
    assert "extends" not in preset


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "Presets of the collection: qwen35_122b_fp8"),
        ("a: [", "is not valid YAML"),
        ("- a", "must hold a dictionary"),
    ],
)
def test_a_preset_that_cannot_be_read_says_so(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "own.yml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match="spark_preset") as caught:
        load_preset(str(path))
    assert words in str(caught.value)


def test_values_that_are_not_set_leave_the_preset_alone() -> None:
    assert ActionModule._single_values({"tensor_parallel": "0", "utilization": "0", "model_folder": ""}) == {}
    assert ActionModule._single_values(
        {"tensor_parallel": "4", "utilization": "0.7", "candidates": [{"image": "x"}]}
    ) == {
        "parallel": {"tensor": 4},
        "engine": {"utilization": 0.7},
        "candidates": [{"image": "x"}],
    }
