"""The choice is explained and pinned to what the head really has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

testinfra_hosts = ["docker://spark-head"]


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


def test_it_serves_over_ray_and_needs_no_pull(choice: dict[str, Any]) -> None:
    assert (choice["backend"], choice["pull"], choice["pinned"]) == ("ray", {}, choice["image_id"])


def test_it_is_remembered_for_the_next_run(host: Any, choice: dict[str, Any]) -> None:
    remembered = json.loads(host.file("/var/lib/dgxspark/state/images.json").content_string)
    assert remembered["vllm-node:0.32"]["id"] == choice["image_id"]


def test_an_absent_candidate_with_a_tag_alone_is_refused(choice: dict[str, Any]) -> None:
    reasons = {entry["image"]: entry["id"] for entry in choice["more"]["rejected"]}
    assert reasons["nowhere:1"] == "IMAGE.UNPINNED"
    # Without Ray: the old one is refused for its version first, whatever the backend.
    assert choice["more"]["image"] == "vllm-node:0.32"


def test_looking_left_no_container_behind(host: Any) -> None:
    assert host.run("docker ps -aq --filter label=io.dgxspark.serving.managed").stdout.strip() == ""
