"""Presets: found by name or path, extended, and refused with the way out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
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


def planned(
    monkeypatch: pytest.MonkeyPatch, host: dict[str, object] | None = None, **arguments: object
) -> dict[str, Any]:
    """The plan of two hosts. host: further variables of the worker."""
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(context, "CLIARGS", {"forks": 5})
    names = ("spark-head", "spark-worker")
    hosts = {name: {"spark_fabric_addresses": [f"192.168.200.{12 + rank}"]} for rank, name in enumerate(names)}
    hosts["spark-head"]["spark_management_address"] = "10.1.230.180"
    hosts["spark-worker"] |= host or {}
    variables = {"inventory_hostname": names[0], "hostvars": hosts, "groups": {"spark": names, "head": names[:1]}}
    action = object.__new__(ActionModule)
    action._task = SimpleNamespace(args={"preset": "qwen35_122b_fp8", **arguments})
    return action.run(None, variables)


@pytest.mark.parametrize(
    ("given", "expected"), [("false", False), ("no", False), ("true", True), (False, False), (True, True)]
)
def test_what_is_turned_off_on_the_command_line_is_off(
    monkeypatch: pytest.MonkeyPatch, given: object, expected: bool
) -> None:
    """-e spark_rollback=false gives text."""
    plan = planned(monkeypatch, rollback=given, firewall=given)
    assert (plan["rollback"], plan["firewall"], bool(plan["firewall_rules"])) == (expected,) * 3


@pytest.mark.parametrize("name", ["ansible_port", "ansible_ssh_port"])
def test_the_ports_by_which_ansible_comes_in_stay_open(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plan = planned(monkeypatch, {name: "40022"}, open_ports=[50000])
    assert plan["open_ports"] == [40022, 50000]
    assert "32768-40021" in plan["firewall_rules"] and "40023-49999" in plan["firewall_rules"]


@pytest.mark.parametrize(("given", "words"), [([0], "spark_open_ports is '0'"), (22, "a list of TCP ports")])
def test_an_open_port_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, given: object, words: str) -> None:
    with pytest.raises(AnsibleActionFail, match=words):
        planned(monkeypatch, open_ports=given)
