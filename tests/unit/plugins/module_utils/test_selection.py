"""Whose is a holder, and what does the report say about one that is on neither list?"""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import (
    Selection,
    classify,
    memory_finding,
    stoppable_unlisted,
    unidentified,
    unlisted_findings,
)

STOP = Selection.parse({"units": ["vllm-cluster"], "containers": ["reranker"], "processes": ["train.py"]})
KEEP = Selection.parse(
    {"containers": ["embeddings"], "images": ["tei"], "labels": ["keep=yes"], "units": ["db.service"]}
)
UNIT_CONTAINERS = {"glm": "vllm-cluster.service"}


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        ({"container": "reranker"}, "stop"),
        ({"container": "glm"}, "stop"),
        ({"systemd_unit": "vllm-cluster.service"}, "stop"),
        ({"process": "/usr/bin/train.py --epochs 3"}, "stop"),
        ({"container": "embeddings"}, "keep"),
        ({"container": "x", "image": "tei:1.2"}, "keep"),
        ({"container": "x", "labels": {"keep": "yes"}}, "keep"),
        ({"container": "x", "labels": {"keep": "no"}}, "unlisted"),
        # The keep-list wins over the stop list.
        ({"container": "reranker", "image": "tei"}, "keep"),
        ({"container": "dgxspark-ray", "labels": {"io.dgxspark.serving.managed": "true"}}, "ours"),
        ({"systemd_unit": "dgxspark-vllm.service"}, "ours"),
        ({"process": "python3 notebook.py"}, "unlisted"),
        # An interpreter is nobody: its script is named.
        ({"process": "python3 /opt/train.py --epochs 3"}, "stop"),
        ({"process": "/usr/bin/python3.12 -m train.py"}, "stop"),
        ({"process": "python3 -u -X dev /opt/train.py"}, "stop"),
        ({"process": "less train.py"}, "unlisted"),
        ({"container": "reranker-2"}, "unlisted"),
        # An empty name is no name.
        ({"container": "", "systemd_unit": ""}, "unlisted"),
    ],
)
def test_classify(holder: dict[str, Any], expected: str) -> None:
    assert classify(holder, STOP, KEEP, UNIT_CONTAINERS) == expected


def test_an_unlisted_holder_ends_the_run_with_lines_to_paste() -> None:
    holder = {"pid": 7, "process": "python3 train.py", "used_gib": 12.5, "container": "notebook", "user": "ana"}
    (finding,) = unlisted_findings("spark-1", [holder], [], STOP, KEEP, {}, "fail")
    assert (finding.id, finding.severity, finding.subject) == ("HOLDER.MEMORY_UNLISTED", "error", "spark-1")
    assert "12.5 GiB" in finding.message
    assert "pid 7, user ana" in finding.message
    assert "spark_stop: {containers: [notebook]}" in finding.remedy
    assert "spark_keep: {containers: [notebook]}" in finding.remedy


def test_an_unlisted_port_holder_ends_the_run() -> None:
    listener = {"port": 8000, "pid": 9, "process": "nginx", "systemd_unit": "nginx.service", "user": "root"}
    (finding,) = unlisted_findings("spark-1", [], [listener], STOP, KEEP, {}, "fail")
    assert finding.id == "HOLDER.PORT_UNLISTED"
    assert "spark_stop: {units: [nginx.service]}" in finding.remedy


def test_a_kept_port_holder_is_an_error_even_under_stop() -> None:
    listener = {"port": 8000, "pid": 9, "container": "embeddings"}
    (finding,) = unlisted_findings("spark-1", [], [listener], STOP, KEEP, {}, "stop")
    assert (finding.id, finding.severity) == ("HOLDER.PORT_KEPT", "error")


@pytest.mark.parametrize(
    ("holder", "severity", "names"),
    [
        ({"container": "notebook", "used_gib": 1.0}, "info", ["notebook"]),
        ({"container": "desktop", "used_gib": 1.0, "graphics": True}, "error", []),
        ({"process": "python3 train", "used_gib": 1.0}, "error", []),
    ],
)
def test_stop_takes_only_what_can_be_brought_back(holder: dict[str, Any], severity: str, names: list[str]) -> None:
    (finding,) = unlisted_findings("spark-1", [holder], [], STOP, KEEP, {}, "stop")
    assert finding.severity == severity
    assert stoppable_unlisted([holder], STOP, KEEP, {}) == names


MEMORY = {"total_gib": 119.6, "available_gib": 20.0, "free_gib": 18.0, "reclaimable_gib": 2.0}


@pytest.mark.parametrize(("used", "fits"), [(90.0, True), (60.0, False)])
def test_memory_after_the_teardown_is_foreseen(used: float, fits: bool) -> None:
    holders = [{"container": "glm", "used_gib": used}, {"container": "embeddings", "used_gib": 30.0}]
    findings = memory_finding("spark-1", holders, MEMORY, 0.8, STOP, KEEP, UNIT_CONTAINERS, [])
    assert [finding.id for finding in findings] == ([] if fits else ["HOLDER.MEMORY_WILL_NOT_FIT"])
    if findings:
        assert "Kept: embeddings (30.0 GiB)" in findings[0].message


@pytest.mark.parametrize(("free", "found"), [(18.0, False), (2.0, True)])
def test_page_cache_that_would_be_in_the_way_is_foreseen(free: float, found: bool) -> None:
    memory = {**MEMORY, "free_gib": free, "reclaimable_gib": 20.0 - free}
    holders = [{"container": "glm", "used_gib": 90.0}]
    findings = memory_finding("spark-1", holders, memory, 0.8, STOP, KEEP, UNIT_CONTAINERS, [])
    assert [(finding.id, finding.severity) for finding in findings] == (
        [("MEMORY.PAGE_CACHE", "warning")] if found else []
    )


def test_holder_without_a_size_is_reported() -> None:
    (finding,) = unlisted_findings(
        "spark-1", [{"pid": 7, "process": "Xorg", "used_gib": None}], [], STOP, KEEP, {}, "fail"
    )
    assert "0.0 GiB" in finding.message


def test_what_an_unprivileged_user_cannot_name_is_not_called_unlisted() -> None:
    holders = [
        {"pid": 7, "container_id": "4f" * 32, "container": "", "used_gib": 80.0},
        {"pid": 8, "process": "python3", "used_gib": 1.0},
    ]
    listeners = [{"port": 8000, "pid": 0}, {"port": 6379, "pid": 9, "process": "redis"}]
    unknown, findings = unidentified("spark-1", holders, listeners)
    assert unknown == [holders[0], listeners[0]]
    assert {finding.id for finding in findings} == {"HOLDER.NOT_IDENTIFIED"}
    assert {finding.severity for finding in findings} == {"warning"}
