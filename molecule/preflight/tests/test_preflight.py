"""What preflight said is true on the hosts, and it changed nothing there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

testinfra_hosts = ["docker://spark-head", "docker://spark-worker"]


@pytest.fixture
def said(host: Any) -> dict[str, Any]:
    name = "lab-" + host.run("hostname").stdout.strip().removeprefix("spark-")
    loaded: dict[str, Any] = json.loads((Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / f"{name}.json").read_text())
    return loaded


def test_holders_are_the_processes_that_nvidia_smi_shows(host: Any, said: dict[str, Any]) -> None:
    shown = host.run("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits").stdout
    expected = {int(line.split(",")[0]): round(int(line.split(",")[1]) / 1024, 1) for line in shown.splitlines()}
    assert expected
    assert {holder["pid"]: round(holder["used_gib"], 1) for holder in said["survey"]["holders"]} == expected


def test_holders_are_traced_to_their_containers(host: Any, said: dict[str, Any]) -> None:
    expected = {"glm", "reranker"} if "head" in host.run("hostname").stdout else {"embeddings", "reranker"}
    assert {holder["container"] for holder in said["survey"]["holders"]} == expected


def test_what_no_process_holds_is_the_driver_s_share_at_rest(said: dict[str, Any]) -> None:
    # tests/lab/host/lib/memory.py: 2.3 GiB are neither processes, cache nor kernel.
    assert said["survey"]["unattributed_gib"] == pytest.approx(2.3, abs=0.2)


def test_both_rails_are_usable_and_named(said: dict[str, Any]) -> None:
    usable = [device["name"] for device in said["survey"]["devices"] if device["usable"]]
    assert sorted(usable) == ["roceP2p1s0f0", "rocep1s0f0"]
    environment = said["survey"]["env"]
    assert environment["GLOO_SOCKET_IFNAME"] == "enp1s0f0np0"
    assert "NCCL_IB_GID_INDEX" not in environment


def test_no_error_was_found(said: dict[str, Any]) -> None:
    assert [finding for finding in said["report"]["findings"] if finding["severity"] == "error"] == []


def test_the_services_still_run(host: Any) -> None:
    names = host.run("docker ps --format '{{.Names}}'").stdout.split()
    assert "reranker" in names, host.run("docker ps -a").stdout


def test_the_libraries_are_there_for_the_modules(host: Any) -> None:
    done = host.run("PYTHONPATH=/opt/dgxspark/python python3 -c 'import docker, requests; print(docker.__version__)'")
    assert done.rc == 0, done.stderr
