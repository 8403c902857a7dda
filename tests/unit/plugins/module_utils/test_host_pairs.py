"""What only the results of all hosts together can tell."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._fabric_pairs import compare_fabrics, judge_forwarding
from ansible_collections.dgxspark.serving.plugins.module_utils._host_pairs import (
    compare_gpus,
    compare_image_room,
    compare_systems,
)

HOSTS = [
    {"name": "head", "role": "head", "gpus": 1, "fabric_addresses": ["192.168.100.11", "192.168.101.11"]},
    {"name": "worker", "role": "worker", "gpus": 1, "fabric_addresses": ["192.168.100.12", "192.168.101.12"]},
]


def fabric(host: int, **second: Any) -> dict[str, Any]:
    """The result of nccl_ib_check of a host with two rails; C(second): what differs on the second one."""
    rails = [
        {
            "device": name,
            "netdev": netdev,
            "ipv4": f"192.168.{subnet}.{host}",
            "subnet": f"192.168.{subnet}.0/24",
            "mtu": 9000,
            "rate_gbps": 200.0,
        }
        for name, netdev, subnet in (("rocep1s0f0", "enp1s0f0np0", 100), ("roceP2p1s0f0", "enP2p1s0f0np0", 101))
    ]
    rails[1].update(second)
    devices = [{"name": rail["device"], "netdev": rail["netdev"], "ipv4": rail["ipv4"], "reason": ""} for rail in rails]
    return {"rails": rails, "devices": devices}


def ids(findings: list[Any]) -> list[str]:
    return [finding.id for finding in findings]


def test_equal_ends_are_fine() -> None:
    assert compare_fabrics(HOSTS, {"head": fabric(11), "worker": fabric(12)}) == []


@pytest.mark.parametrize(
    ("second", "identity", "severity"),
    [
        ({"mtu": 1500}, "FABRIC.MTU_PAIR", "error"),
        ({"subnet": "192.168.101.0/25"}, "FABRIC.SUBNET_MISMATCH", "error"),
        ({"rate_gbps": 100.0}, "FABRIC.RATE_MISMATCH", "warning"),
    ],
)
def test_ends_that_differ(second: dict[str, Any], identity: str, severity: str) -> None:
    (finding,) = compare_fabrics(HOSTS, {"head": fabric(11), "worker": fabric(12, **second)})
    assert (finding.id, finding.severity, finding.subject) == (identity, severity, "rail 2")
    assert "head enP2p1s0f0np0" in finding.message and "worker enP2p1s0f0np0" in finding.message


def test_planned_address_that_no_usable_rail_has() -> None:
    worker = fabric(12)
    worker["rails"].pop()
    worker["devices"][1]["reason"] = "its port is DOWN"
    (finding,) = compare_fabrics(HOSTS, {"head": fabric(11), "worker": worker})
    assert (finding.id, finding.subject) == ("FABRIC.ADDRESS_MISSING", "worker")
    assert "enP2p1s0f0np0 has it, but its port is DOWN" in finding.message


def test_hosts_with_different_numbers_of_rails() -> None:
    hosts = [HOSTS[0], {**HOSTS[1], "fabric_addresses": ["192.168.100.12"]}]
    assert ids(compare_fabrics(hosts, {"head": fabric(11), "worker": fabric(12)})) == ["FABRIC.RAILS_UNPAIRED"]


def test_host_without_a_result_is_left_out() -> None:
    assert compare_fabrics(HOSTS, {"head": fabric(11)}) == []


def test_docker_s_forward_policy_matters_from_three_hosts_on() -> None:
    firewalls = {"head": {"forward": "DROP"}, "worker": {"forward": "ACCEPT"}}
    assert judge_forwarding(HOSTS, firewalls) == []
    (finding,) = judge_forwarding([*HOSTS, HOSTS[1]], firewalls)
    assert (finding.id, finding.severity, finding.subject) == ("FABRIC.FORWARD_DROPPED", "info", "head")


def test_architectures() -> None:
    assert compare_systems({"a": {"architecture": "aarch64"}, "b": {"architecture": "aarch64"}}) == []
    (finding,) = compare_systems({"a": {"architecture": "aarch64"}, "b": {"architecture": "x86_64"}})
    assert "a aarch64, b x86_64" in finding.message


def test_gpus_and_drivers() -> None:
    one = {"name": "NVIDIA GB10", "driver": "580.95.05"}
    assert compare_gpus(HOSTS, {"head": {"gpus": [one]}, "worker": {"gpus": [one]}}) == []
    other = {"name": "NVIDIA GB10", "driver": "580.142"}
    findings = compare_gpus(HOSTS, {"head": {"gpus": [one]}, "worker": {"gpus": [other, other]}})
    assert ids(findings) == ["HOST.GPU_COUNT", "HOST.DRIVER_MIXED"]
    # GPUs that cannot be read have a finding of their own.
    assert compare_gpus(HOSTS, {"head": {"gpus": [one]}, "worker": {"gpus": []}}) == []


OLD = {"id": "sha256:old", "size_gib": 20.0}
NEW = {"id": "sha256:new", "size_gib": 36.0}


@pytest.mark.parametrize(
    ("free", "own", "offered", "expected"),
    [
        (100.0, {}, {"old:1": OLD, "new:1": NEW}, []),
        (30.0, {}, {"old:1": OLD, "new:1": NEW}, [("HOST.DISK_TIGHT", "warning")]),
        (10.0, {}, {"old:1": OLD, "new:1": NEW}, [("HOST.DISK_FULL", "error")]),
        # It has the image already.
        (10.0, {"new:1": NEW}, {"new:1": NEW}, []),
        (10.0, {"new:1": NEW}, {"old:1": OLD, "new:1": NEW}, [("HOST.DISK_TIGHT", "warning")]),
        # Nobody knows the size.
        (30.0, {}, {}, [("HOST.DISK_TIGHT", "warning")]),
        # Docker itself cannot work.
        (0.4, {"new:1": NEW}, {"new:1": NEW}, [("HOST.DISK_FULL", "error")]),
    ],
)
def test_room_for_the_head_s_images(free: float, own: Any, offered: Any, expected: list[tuple[str, str]]) -> None:
    surveys = {
        "head": {
            "images": offered,
            "disks": {"docker": {"path": "/var/lib/docker", "free_gib": 500, "total_gib": 900}},
        },
        "worker": {"images": own, "disks": {"docker": {"path": "/var/lib/docker", "free_gib": free, "total_gib": 900}}},
    }
    assert [(finding.id, finding.severity) for finding in compare_image_room(HOSTS, surveys)] == expected
