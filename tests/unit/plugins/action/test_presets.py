# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every preset of the collection is accepted by gate 1 for the hosts that it is for."""

from __future__ import annotations

import pytest
from ansible_collections.dgxspark.serving.plugins.action.deployment_plan import PRESETS_FOLDER, load_preset
from ansible_collections.dgxspark.serving.plugins.module_utils._plan import (
    PlannedHost,
    PlanOptions,
    PlanRefused,
    build_plan,
)

HEAD = PlannedHost("spark-1a32", "head", ("192.168.200.12",))
WORKER = PlannedHost("spark-5be3", "worker", ("192.168.200.13",))
HOSTS = {"qwen35_122b_fp8": [HEAD, WORKER], "qwen35_122b_int4": [HEAD], "qwen35_122b_nvfp4": [HEAD]}
# MemTotal of a Spark.
HOST_GIB = 119.6


def test_there_is_a_test_for_every_preset():
    assert set(HOSTS) == {path.stem for path in PRESETS_FOLDER.glob("*.yml")}


@pytest.mark.parametrize("backend", ["ray", "mp", "auto"])
@pytest.mark.parametrize(("name", "hosts"), list(HOSTS.items()))
def test_it_fits_the_hosts_that_it_is_for(name, hosts, backend):
    preset = load_preset(name)
    plan = build_plan(preset, hosts, PlanOptions(backend=backend))
    assert plan["preset"] == name and plan["world_size"] == len(hosts)
    memory = plan["memory"]
    assert memory["required_gib"] <= memory["granted_gib"] <= HOST_GIB - memory["reserve_gib"]
    # Weights, the cache of a full request, overhead.
    assert memory["required_gib"] == pytest.approx(
        memory["weights_gib"] + memory["kv_cache_gib"] + memory["overhead_gib"], abs=0.02
    )


@pytest.mark.parametrize(
    ("name", "weights_gib", "granted_gib"), [("qwen35_122b_int4", 66.12, 98.07), ("qwen35_122b_nvfp4", 75.9, 95.68)]
)
def test_one_host_holds_a_quantised_model(name, weights_gib, granted_gib):
    plan = build_plan(load_preset(name), [HEAD], PlanOptions())
    # 65536 tokens x 48 KiB.
    assert plan["memory"]["kv_cache_gib"] == 3.0
    assert (plan["memory"]["weights_gib"], plan["memory"]["granted_gib"]) == (weights_gib, granted_gib)
    assert "nccl" not in plan["requirements"]["prefer"] and plan["requirements"]["require"]["vllm"] == ">=0.17"
    # The environment of the preset that it extends stays.
    assert plan["environment"]["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize("name", ["qwen35_122b_int4", "qwen35_122b_nvfp4"])
def test_two_hosts_are_refused_until_the_sizes_are_changed(name):
    with pytest.raises(PlanRefused, match="Tensor parallel 1 x pipeline parallel 1 = 1 ranks"):
        build_plan(load_preset(name), [HEAD, WORKER], PlanOptions())


def test_one_host_cannot_hold_the_model_in_fp8():
    preset = load_preset("qwen35_122b_fp8")
    preset["parallel"]["tensor"] = 1
    with pytest.raises(PlanRefused, match="A rank needs 126"):
        build_plan(preset, [HEAD], PlanOptions())


def test_a_preset_extends_another_from_where_it_is(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "base.yml").write_text(
        "extends: qwen35_122b_fp8\nname: base\nengine: {max_num_seqs: 7}\n", encoding="utf-8"
    )
    (tmp_path / "mine" / "own.yml").write_text("extends: ../base.yml\nname: own\n", encoding="utf-8")
    monkeypatch.chdir("/")
    preset = load_preset(str(tmp_path / "mine" / "own.yml"))
    assert (preset["name"], preset["engine"]["max_num_seqs"]) == ("own", 7)
    assert preset["model"] == load_preset("qwen35_122b_fp8")["model"]
