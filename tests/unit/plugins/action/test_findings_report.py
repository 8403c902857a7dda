"""Why a host gave no findings, in words that name the way out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.action.findings_report import (
    ActionModule,
    comparisons,
    finding_of_failure,
    missing_password,
)


@pytest.mark.parametrize(
    ("result", "expected", "words"),
    [
        (
            {"unreachable": True, "msg": "Failed to connect to the host via ssh: no route"},
            "HOST.UNREACHABLE",
            "through the head",
        ),
        ({"failed": True, "msg": "Task failed: Incorrect sudo password"}, "HOST.BECOME_REFUSED", "--ask-become-pass"),
        ({"failed": True, "msg": "Missing sudo password"}, "HOST.BECOME_REFUSED", "--ask-become-pass"),
        ({"failed": True, "msg": "Module crashed"}, "HOST.CHECK_FAILED", ""),
        # ssh that asks for a password is not sudo.
        ({"unreachable": True, "msg": "Permission denied (publickey,password)"}, "HOST.UNREACHABLE", "keys"),
    ],
)
def test_finding_of_failure(result: dict[str, Any], expected: str, words: str) -> None:
    finding = finding_of_failure("spark-1", result)
    assert finding.id == expected
    assert words in finding.remedy


@pytest.mark.parametrize(
    ("result", "missing"),
    [
        ({"failed": True, "msg": "Missing sudo password"}, True),
        ({"failed": True, "msg": "Incorrect sudo password"}, False),
        ({"unreachable": True, "msg": "Permission denied (publickey,password)"}, False),
    ],
)
def test_password_that_was_not_given_is_not_one_that_was_refused(result: dict[str, Any], missing: bool) -> None:
    assert missing_password(result) is missing


def test_results_of_all_hosts_are_compared() -> None:
    hosts = [
        {"name": name, "role": role, "gpus": 1, "fabric_addresses": [f"192.168.100.{number}"]}
        for name, role, number in (("a", "head", 11), ("b", "worker", 12))
    ]
    own = {
        name: {
            "survey": {
                "architecture": architecture,
                "disks": {},
                "images": {},
                "firewalls": {"blocking": []},
                "probe": {
                    "address": f"192.168.100.{number}",
                    "connections": [{"peer": f"192.168.100.{23 - number}", "port": 6379, "outcome": "no_answer"}],
                    "answering": [6379],
                    "heard_from": [],
                    "clock_offsets": {f"192.168.100.{23 - number}": 0.0},
                },
            },
            "gpus": [{"name": "NVIDIA GB10", "driver": "580.95.05"}],
            "rails": [],
            "devices": [],
        }
        for name, architecture, number in (("a", "aarch64", 11), ("b", "x86_64", 12))
    }
    assert [finding.id for finding in comparisons({"hosts": hosts}, own)] == [
        "HOST.ARCHITECTURE_MIXED",
        "FABRIC.ADDRESS_MISSING",
        "FABRIC.ADDRESS_MISSING",
        "FABRIC.PORT_BLOCKED",
        "FABRIC.PORT_BLOCKED",
    ]


@pytest.mark.parametrize(
    ("available", "needed", "expected"),
    [([20.0, 7.5], None, True), ([20.0, 5.9], None, False), ([20.0, 7.5], 8.0, False), ([], None, False)],
)
def test_the_trial_needs_room_on_every_host(available: list[float], needed: float | None, expected: bool) -> None:
    report = object.__new__(ActionModule)
    report._available_gib = available
    report._task = SimpleNamespace(args={"trial_gib": needed})
    assert report._trial_has_room() is expected
