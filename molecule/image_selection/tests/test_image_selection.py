"""The choice is explained and pinned to what the head really has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

testinfra_hosts = ["docker://sparkb-head"]


@pytest.fixture
def choice() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "choice.json").read_text())
    return loaded


def test_the_first_that_can_serve_is_chosen(choice: dict[str, Any]) -> None:
    assert (choice["image"], choice["engine"], choice["engine_version"]) == ("vllm-node:0.32", "vllm", "0.32.0")
    assert choice["versions"]["ray"] == "2.60.0"


def test_the_old_one_is_rejected_with_its_reason(choice: dict[str, Any]) -> None:
    (rejection,) = choice["rejected"]
    assert rejection["image"] == "vllm-node:0.14"
    assert "vLLM 0.14.1 does not know Qwen3_5MoeForConditionalGeneration" in rejection["reason"]
    assert "the closest it knows is Qwen3" in rejection["reason"]
    assert rejection["remedy"]


def test_it_is_pinned_by_the_id_that_the_engine_has(host: Any, choice: dict[str, Any]) -> None:
    assert choice["image_id"] == host.run("docker image inspect -f '{{.Id}}' vllm-node:0.32").stdout.strip()


def test_looking_left_no_container_behind(host: Any) -> None:
    assert host.run("docker ps -aq --filter label=io.dgxspark.serving.managed").stdout.strip() == ""
