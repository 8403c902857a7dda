# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _fabric_check
from ansible_collections.dgxspark.serving.plugins.module_utils._log_input import read_logs
from ansible_collections.dgxspark.serving.plugins.module_utils._tool import ToolResult
from ansible_collections.dgxspark.serving.plugins.modules import nccl_ib_check
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_fabric import (
    EMPTY_GID,
    LINK_LOCAL_GID,
    FakeFabric,
    gid_of,
)

H200 = Path(__file__).parents[2] / "fixtures" / "h200"


@pytest.fixture
def fabric(tmp_path: Path) -> FakeFabric:
    return FakeFabric(tmp_path)


@pytest.fixture
def check(fabric: FakeFabric, run_module, monkeypatch):
    monkeypatch.setattr(_fabric_check, "read_addresses", lambda: tuple(fabric.addresses))

    def run(**options: Any) -> dict[str, Any]:
        return run_module(nccl_ib_check, **{"sysfs_root": str(fabric.sysfs), "proc_root": "/nowhere", **options})

    return run


def ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


def subjects(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(finding["id"], finding["subject"]) for finding in result["findings"]]


def environment(variables: list[str]) -> dict[str, str]:
    return dict(variable.split("=", 1) for variable in variables)


# Logs


def test_case_001_external_plugin_is_rdma(fabric, check, case_text):
    fabric.spark(port=1)
    result = check(log=case_text("001", "worker.log"))
    transport = result["transport"]
    assert (transport["verdict"], transport["plugin"]) == ("ib", "IBext_v10")
    assert transport["devices"] == ["rocep1s0f1", "roceP2p1s0f1"]
    assert transport["channels"] == {"NET/IBext_v10/0": 1, "NET/IBext_v10/1": 1}
    (rank,) = transport["ranks"]
    assert (rank["host"], rank["pid"], rank["rank"], rank["nranks"]) == ("spark-b", 2981, 1, 2)
    # Healthy; the log is only that of the worker.
    assert ids(result) == ["NCCL.RANKS_MISSING"]


def test_case_002_prefix_selects_and_down_ports_are_no_fault(fabric, check, case_text):
    fabric.spark(port=1)
    result = check(log=case_text("002", "head.log"), env={"NCCL_IB_HCA": "roce"})
    assert (result["transport"]["verdict"], result["transport"]["nccl_version"]) == ("ib", "2.30.7")
    assert result["transport"]["channels"] == {"NET/IB/0": 2, "NET/IB/1": 2}
    assert ids(result) == ["NCCL.GID_INDEX_PINNED", "NCCL.RANKS_MISSING"]
    assert result["env"]["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"
    assert "NCCL_IB_GID_INDEX" not in result["env"]


def test_case_003_container_without_devices_falls_back_silently(fabric, check, case_text):
    fabric.spark(port=0)
    result = check(log=case_text("003", "worker.log"))
    assert (result["transport"]["verdict"], result["transport"]["plugin"]) == ("socket", "Socket")
    finding = result["findings"][0]
    assert (finding["id"], finding["severity"]) == ("NCCL.NO_DEVICE_IN_CONTAINER", "error")
    for word in ("/dev/infiniband", "IPC_LOCK", "memlock=-1"):
        assert word in finding["remedy"]
    # The host is healthy: nothing about cables.
    assert [name for name in ids(result) if name.startswith("FABRIC.")] == []


def test_case_005_forced_rdma_without_device(fabric, check, case_text):
    fabric.spark(port=0)
    (container,) = json.loads(case_text("005", "container.json"))
    result = check(log=case_text("005", "head.log"), env=environment(container["Config"]["Env"]))
    assert result["transport"]["verdict"] == "unknown"
    (finding,) = result["findings"]
    assert finding["id"] == "NCCL.NO_NET_PLUGIN"
    assert "no argument is wrong" in finding["message"]
    assert "/dev/infiniband" in finding["remedy"]


def test_case_006_selector_of_another_machine(fabric, check, case_text):
    for name, subnet in (("enp1s0f0np0", 100), ("enP2p1s0f0np0", 101)):
        fabric.interface(name, f"192.168.{subnet}.11")
    fabric.from_ibdev2netdev(case_text("006", "ibdev2netdev.txt"))
    result = check(log=case_text("006", "head.log"))
    assert result["transport"]["verdict"] == "socket"
    (finding,) = result["findings"]
    assert finding["id"] == "NCCL.HCA_MATCHES_NOTHING"
    assert "rocep1s0f0, roceP2p1s0f0" in finding["message"]
    assert "NCCL_IB_HCA==rocep1s0f0,roceP2p1s0f0" in finding["remedy"]


def fabric_of_show_gids(fabric: FakeFabric, text: str) -> None:
    tables: dict[str, dict[int, tuple[str, str]]] = {}
    netdevs = {}
    for line in text.splitlines():
        row = re.match(r"(\S+)\t1\t(\d+)\t(\S+)\s+(?:[\d.]+\s+)?v(\d)\s+(\S+)", line)
        if row:
            kind = "RoCE v2" if row[4] == "2" else "IB/RoCE v1"
            tables.setdefault(row[1], {})[int(row[2])] = (row[3], kind)
            netdevs[row[1]] = row[5]
    addresses = dict(zip(netdevs, re.findall(r"192\.168\.\d+\.\d+(?=  \tv2)", text), strict=True))
    for name, gids in tables.items():
        fabric.interface(netdevs[name], addresses[name])
        fabric.device(name, netdevs[name], gids=gids)


def test_case_009_pinned_index_is_a_hole_on_the_second_device(fabric, check, case_text):
    fabric_of_show_gids(fabric, case_text("009", "show_gids.txt"))
    result = check(log=case_text("009", "worker.log"), env={"NCCL_IB_GID_INDEX": 3, "NCCL_IB_HCA": "roce"})
    indexes = {device["name"]: device["roce_v2_ipv4_gid_index"] for device in result["devices"]}
    assert indexes == {"rocep1s0f1": 3, "roceP2p1s0f1": 4}
    assert result["transport"]["verdict"] == "unknown"
    assert subjects(result) == [("NCCL.GID_INDEX_INVALID", "roceP2p1s0f1"), ("NCCL.GID_INVALID", "roceP2p1s0f1")]
    for finding in result["findings"]:
        assert "4" in finding["message"]
        assert finding["remedy"].startswith("Remove NCCL_IB_GID_INDEX")


def test_case_009_the_log_alone_suffices(fabric, check, case_text):
    result = check(log=case_text("009", "worker.log"), expect_rails=0)
    # The log has no line that names the rank: the direction of a channel does.
    assert [rank["rank"] for rank in result["transport"]["ranks"]] == [1]
    finding = next(finding for finding in result["findings"] if finding["id"] == "NCCL.GID_INVALID")
    assert "GID index 3 of roceP2p1s0f1 is empty" in finding["message"]
    assert "ibv_modify_qp failed with 61" in finding["evidence"]


def test_case_011_empty_is_not_unset(fabric, check, case_text):
    fabric.spark(host=12, port=1)
    env = environment(json.loads(case_text("011", "container-env.json"))["Config"]["Env"])
    result = check(log=case_text("011", "worker.log"), env=env)
    assert result["transport"]["verdict"] == "unknown"
    assert ids(result) == ["NCCL.EMPTY_VALUE", "NCCL.GID_LINK_LOCAL"]
    assert "reads it as 0" in result["findings"][0]["message"]
    assert "empty string" in result["findings"][1]["message"]
    assert "absent, not empty" in result["findings"][1]["remedy"]
    env["NCCL_IB_GID_INDEX"] = None
    assert ids(check(env=env)) == []


def test_case_012_ports_on_different_cables(fabric, check, case_text):
    for name, netdev, ipv4 in (
        ("rocep1s0f0", "enp1s0f0np0", "192.168.30.2"),
        ("rocep1s0f1", "enp1s0f1np1", "192.168.10.2"),
    ):
        fabric.rail(name, netdev, ipv4)
    result = check(log=case_text("012", "rank1.log"))
    assert result["transport"]["verdict"] == "unknown"
    finding = result["findings"][0]
    assert (finding["id"], finding["subject"]) == ("NCCL.CROSS_CABLE", "rocep1s0f0")
    assert "192.168.30.2 (192.168.30.0/24) and 192.168.10.1" in finding["message"]
    assert "NCCL_IB_SUBNET_AWARE_ROUTING" in finding["remedy"]
    assert not any("GID" in name for name in ids(result))


def spark_b_of_case_013(fabric: FakeFabric, text: str) -> None:
    first, second = re.findall(r"^(\d{4})$", text, re.M)
    fabric.rail("rocep1s0f1", "enp1s0f1np1", "192.168.100.12", mtu=int(first))
    fabric.rail("roceP2p1s0f1", "enP2p1s0f1np1", "192.168.101.12", mtu=int(second))
    fabric.rail("rocep1s0f0", "enp1s0f0np0", mtu=1500, active=False)
    fabric.rail("roceP2p1s0f0", "enP2p1s0f0np0", mtu=1500, active=False)


@pytest.mark.parametrize("expect_mtu", [9000, None])
def test_case_013_the_host_with_the_small_mtu_is_found(fabric, check, case_text, expect_mtu):
    spark_b_of_case_013(fabric, case_text("013", "spark-b.links.txt"))
    result = check(**({"expect_mtu": expect_mtu} if expect_mtu else {}))
    assert subjects(result) == [("FABRIC.MTU_MISMATCH", "roceP2p1s0f1")]
    assert "netplan" in result["findings"][0]["remedy"]


def test_case_013_the_other_host_sees_it_in_log_and_pings(fabric, check, case_text, monkeypatch):
    spark_b_of_case_013(fabric, case_text("013", "spark-a.links.txt"))
    sent = []

    def ping(address: str, payload: int, source: str) -> ToolResult:
        sent.append((address, payload, source))
        lost = address == "192.168.101.12" and payload > 1472
        return ToolResult(1 if lost else 0, "", "2 packets transmitted, 0 received" if lost else "")

    monkeypatch.setattr(_fabric_check, "ping", ping)
    peers = ["192.168.100.12", "192.168.101.12"]
    result = check(log=case_text("013", "spark-a.log"), peers=peers)
    assert subjects(result) == [("FABRIC.PEER_MTU", "192.168.101.12"), ("NCCL.RETRY_EXCEEDED", "roceP2p1s0f1")]
    assert ("192.168.100.12", 8972, "192.168.100.12") in sent
    assert [(peer["address"], peer["reachable"], peer["full_size"]) for peer in result["peers"]] == [
        ("192.168.100.12", True, True),
        ("192.168.101.12", True, False),
    ]
    assert "enP2p1s0f1np1 has MTU 9000 here" in result["findings"][1]["message"]
    # It was connected by RDMA and failed later.
    assert result["transport"]["verdict"] == "ib"


def test_case_015_settings_baked_into_the_image(fabric, check, case_text):
    fabric.spark(port=0)
    result = check(log=case_text("015", "head.log"))
    assert result["transport"]["verdict"] == "ib"
    experimental = [finding for finding in result["findings"] if finding["id"] == "NCCL.EXPERIMENTAL_SETTING"]
    assert [finding["subject"] for finding in experimental] == [
        "NCCL_IB_USE_INLINE",
        "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS",
    ]
    assert all("/etc/nccl.conf" in finding["remedy"] for finding in experimental)


@pytest.mark.parametrize("broken, remedy, avoided", [(True, "kho=off", "memlock"), (False, "memlock=-1", "kho=off")])
def test_case_016_memory_registration_fails_for_one_of_two_reasons(
    fabric, check, case_text, tmp_path, broken, remedy, avoided
):
    fabric.spark(host=12, port=1)
    facts = case_text("016", "worker.host.txt")
    meminfo = facts[facts.index("MemTotal:") :]
    (tmp_path / "meminfo").write_text(meminfo if broken else meminfo.replace("940604", "     0"))
    result = check(log=case_text("016", "worker.log"), proc_root=str(tmp_path))
    assert result["transport"]["verdict"] == "unknown"
    (finding,) = result["findings"]
    assert finding["id"] == "NCCL.REGISTRATION_FAILED"
    assert remedy in finding["remedy"]
    assert avoided not in finding["remedy"]


@pytest.mark.parametrize("log", ["nccl-2.27.log", "nccl-2.30.log"])
def test_case_018_interface_of_another_host_in_both_wordings(fabric, check, case_text, log):
    fabric.from_ip_brief(case_text("018", "spark-b.ip-br-addr.txt"))
    result = check(log=case_text("018", log), env={"NCCL_SOCKET_IFNAME": "enp1s0f1np1"}, expect_rails=0)
    findings = [finding for finding in result["findings"] if finding["severity"] == "error"]
    assert [finding["id"] for finding in findings] == ["NCCL.SOCKET_IFNAME_INVALID"] * 2
    assert [finding["subject"] for finding in findings] == ["NCCL_SOCKET_IFNAME", "spark-b pid 1958"]
    for finding in findings:
        assert "enp1s0f0np0" in finding["remedy"]


def test_case_019_one_half_of_the_port(fabric, check, case_text):
    fabric.interface("enp1s0f0np0", "192.168.100.11")
    fabric.interface("enP2p1s0f0np0")
    fabric.from_ibdev2netdev(case_text("019", "ibdev2netdev.txt"))
    result = check(log=case_text("019", "head.log"))
    assert result["transport"]["verdict"] == "ib"
    assert [(f["id"], f["severity"]) for f in result["findings"]] == [
        ("FABRIC.NO_IPV4_GID", "warning"),
        ("NCCL.RAIL_UNUSED", "warning"),
    ]
    assert result["findings"][0]["subject"] == "roceP2p1s0f0"
    assert "roceP2p1s0f0 is the other half of the same port" in result["findings"][1]["message"]
    assert "rocep1s0f1" not in json.dumps(result["findings"])
    planned = check(log=case_text("019", "head.log"), expect_rails=2)
    assert ids(planned) == ["FABRIC.NO_IPV4_GID", "FABRIC.RAILS_MISSING", "NCCL.RAIL_UNUSED"]
    assert {finding["severity"] for finding in planned["findings"]} == {"error"}


def test_case_021_quiet_log_proves_nothing(fabric, check, case_text):
    fabric.spark()
    result = check(log=case_text("021", "head.log"))
    assert (result["transport"]["verdict"], result["transport"]["nccl_version"]) == ("unknown", "2.28.9")
    (finding,) = result["findings"]
    assert finding["id"] == "NCCL.NO_EVIDENCE"
    assert "NCCL_DEBUG=INFO" in finding["remedy"] and "port counters" in finding["remedy"]


def test_case_022_selected_is_not_connected(fabric, check, case_text):
    result = check(log=case_text("022", "rank0.log"), expect_rails=0)
    transport = result["transport"]
    assert (transport["verdict"], transport["plugin"], transport["nccl_version"]) == ("unknown", "IBext_v8", "2.21.5")
    assert len(transport["ranks"]) == 1
    finding = next(finding for finding in result["findings"] if finding["id"] == "NCCL.CONNECT_FAILED")
    assert "Connection timed out" in finding["message"]
    assert "newer NCCL" in finding["remedy"]


# Hosts


@pytest.mark.parametrize(
    "node, rails, env",
    [
        (
            "node-a",
            [("rocep1s0f1", "enp1s0f1np1", "192.168.100.11"), ("roceP2p1s0f1", "enP2p1s0f1np1", "192.168.200.17")],
            {"NCCL_IB_HCA": "=rocep1s0f1,roceP2p1s0f1", "NCCL_SOCKET_IFNAME": "enp1s0f1np1"},
        ),
        (
            "node-b",
            [("rocep1s0f0", "enp1s0f0np0", "192.168.100.12"), ("roceP2p1s0f0", "enP2p1s0f0np0", "192.168.200.18")],
            {"NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0", "NCCL_SOCKET_IFNAME": "enp1s0f0np0"},
        ),
    ],
)
def test_case_023_each_host_has_its_own_environment(fabric, check, case_text, node, rails, env):
    fabric.from_ip_brief(case_text("023", f"{node}.ip-br-addr.txt"))
    fabric.from_ibdev2netdev(case_text("023", f"{node}.ibdev2netdev.txt"))
    for name in ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"):
        if not any(name == rail[1] for rail in rails):
            fabric.write(f"class/net/{name}/mtu", "1500")
    result = check(expect_rails=2, env={"NCCL_IB_HCA": "roce"})
    assert [(rail["device"], rail["netdev"], rail["ipv4"]) for rail in result["rails"]] == rails
    assert result["findings"] == []
    assert result["env"] == {
        **env,
        "GLOO_SOCKET_IFNAME": env["NCCL_SOCKET_IFNAME"],
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
    }
    assert [device["usable"] for device in result["devices"]].count(True) == 2


def test_case_024_ipv4_link_local_is_usable(fabric, check, case_text):
    fabric.from_dump(case_text("024", "sysfs.txt"))
    result = check(expect_rails=2)
    assert [(d["name"], d["usable"], d["roce_v2_ipv4_gid_index"], d["ipv4"], d["mtu"]) for d in result["devices"]] == [
        ("rocep1s0f1", True, 3, "169.254.35.62", 1500),
        ("roceP2p1s0f1", True, 3, "169.254.91.7", 1500),
    ]
    assert [(finding["id"], finding["severity"]) for finding in result["findings"]] == [
        ("FABRIC.MTU_SMALL", "warning"),
        ("FABRIC.MTU_SMALL", "warning"),
        ("FABRIC.SHARED_SUBNET", "warning"),
    ]
    assert "169.254.0.0/16" in result["findings"][2]["message"]


def test_case_025_active_is_not_usable(fabric, check, case_text):
    fabric.from_dump(case_text("025", "sysfs.txt"))
    result = check(env={"NCCL_SOCKET_IFNAME": None, "NCCL_DEBUG": "INFO"})
    usable = {device["name"]: (device["usable"], device["state"]) for device in result["devices"]}
    assert usable == {
        "rocep1s0f0": (False, "DOWN"),
        "rocep1s0f1": (True, "ACTIVE"),
        "roceP2p1s0f1": (False, "ACTIVE"),
    }
    reasons = {device["name"]: device["reason"] for device in result["devices"]}
    assert reasons["rocep1s0f0"] == "the port is DOWN"
    assert "no RoCE v2 GID with an IPv4 address" in reasons["roceP2p1s0f1"]
    assert subjects(result) == [("FABRIC.NO_IPV4_GID", "roceP2p1s0f1"), ("NCCL.HCA_OPEN", "NCCL_IB_HCA")]
    assert "NCCL_IB_HCA==rocep1s0f1" in result["findings"][1]["remedy"]
    assert result["env"]["NCCL_IB_HCA"] == "=rocep1s0f1"
    selected = check(env={"NCCL_IB_HCA": "=rocep1s0f1,roceP2p1s0f1"})
    assert "NCCL.HCA_NOT_USABLE" in ids(selected)


def test_case_028_same_names_on_another_machine(fabric, check, case_text):
    for name, state, netdev in re.findall(
        r"link (\S+)/1 state (\S+) .* netdev (\S+)", case_text("028", "rdma-link.txt")
    ):
        fabric.rail(name, netdev, active=state == "ACTIVE")
    result = check()
    assert [(device["name"], device["netdev"], device["usable"]) for device in result["devices"]] == [
        ("rocep1s0f0", "enp1s0f0np0", False),
        ("rocep1s0f1", "enp1s0f1np1", False),
    ]
    # No twin exists there, so nothing is said about one.
    assert ids(result) == ["FABRIC.NO_USABLE_RAIL"]
    assert "NCCL_IB_HCA" not in result["env"]


def test_h200_one_rank_without_rdma(check):
    result = check(log_path=[str(H200 / "nccl_1rank.txt")], expect_rails=0)
    transport = result["transport"]
    assert (transport["verdict"], transport["nccl_version"], transport["devices"]) == ("socket", "2.28.9", [])
    assert "NCCL.NO_DEVICE_IN_CONTAINER" in ids(result)


def test_h200_forced_rdma_fails_closed(check):
    result = check(log_path=[str(H200 / "nccl_1rank_net_ib.txt")], expect_rails=0)
    assert result["transport"]["verdict"] == "unknown"
    assert "NCCL.NO_NET_PLUGIN" in ids(result)


# What no case has


@pytest.mark.parametrize(
    "value, expected",
    [
        ("roce", []),
        ("=rocep1s0f1,roceP2p1s0f1", []),
        ("=rocep1s0f1:1,roceP2p1s0f1:1", []),
        ("^rocep1s0f0", []),
        ("rocep1s0f1", ["NCCL.RAIL_UNUSED"]),
        ("^=roceP2p1s0f1", ["NCCL.RAIL_UNUSED"]),
        ("=roce", ["NCCL.HCA_MATCHES_NOTHING"]),
        ("rocep1s0f1:2", ["NCCL.HCA_MATCHES_NOTHING"]),
        ("rocep1s0f0", ["NCCL.HCA_MATCHES_NOTHING"]),
        ("^roce", ["NCCL.HCA_MATCHES_NOTHING"]),
        ("", ["NCCL.EMPTY_VALUE"]),
        (None, []),
    ],
)
def test_hca_selector(fabric, check, value, expected):
    fabric.spark(port=1)
    assert ids(check(env={"NCCL_IB_HCA": value})) == expected


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("NCCL_SOCKET_IFNAME", "enp1s0f1np1", []),
        ("NCCL_SOCKET_IFNAME", "enp1", []),
        ("NCCL_SOCKET_IFNAME", "=enp1", ["NCCL.SOCKET_IFNAME_INVALID"]),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", []),
        ("NCCL_SOCKET_IFNAME", "enp1s0f0np0", ["NCCL.SOCKET_IFNAME_INVALID"]),
        ("GLOO_SOCKET_IFNAME", "enp1s0f1np1", []),
        ("GLOO_SOCKET_IFNAME", "enp1", ["NCCL.GLOO_IFNAME_INVALID"]),
        ("GLOO_SOCKET_IFNAME", "=enp1s0f1np1", ["NCCL.VALUE_INVALID"]),
        ("GLOO_SOCKET_IFNAME", "", ["NCCL.EMPTY_VALUE"]),
        ("NCCL_IB_GID_INDEX", "3", ["NCCL.GID_INDEX_PINNED"]),
        ("NCCL_IB_GID_INDEX", 1, ["NCCL.GID_INDEX_INVALID", "NCCL.GID_INDEX_INVALID"]),
        ("NCCL_IB_GID_INDEX", "-1", []),
        ("NCCL_IB_GID_INDEX", "three", ["NCCL.VALUE_INVALID"]),
        ("NCCL_NET", "IB", []),
        ("NCCL_NET", "Socket", ["NCCL.SOCKET_FORCED"]),
        ("NCCL_IB_DISABLE", "1", ["NCCL.IB_DISABLED"]),
        ("NCCL_IB_DISABLE", 0, []),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6", ["NCCL.VALUE_INVALID"]),
        ("NCCL_IB_ROCE_VERSION_NUM", 1, ["NCCL.VALUE_INVALID"]),
        ("NCCL_IB_ROCE_VERSION_NUM", 2, []),
        ("NCCL_DEBUG", "WARN", ["NCCL.DEBUG_TOO_QUIET"]),
        ("NCCL_DEBUG", "INFO", []),
        ("NCCL_IB_USE_INLINE", 1, ["NCCL.EXPERIMENTAL_SETTING"]),
        ("NCCL_IB_USE_INLINE", 0, []),
        ("VLLM_HOST_IP", "", []),
    ],
)
def test_environment(fabric, check, name, value, expected):
    fabric.spark(port=1)
    assert ids(check(env={name: value})) == expected


def test_forced_rdma_on_a_host_without_rails(fabric, check):
    fabric.rail("rocep1s0f0", "enp1s0f0np0", active=False)
    assert "NCCL.FORCED_WITHOUT_DEVICE" in ids(check(env={"NCCL_NET": "IB"}, expect_rails=0))


def test_recommended_environment_passes_its_own_judgement(fabric, check):
    fabric.spark(port=0)
    recommended = check()["env"]
    assert ids(check(env=recommended)) == []


def test_recommended_interface_is_the_first_that_is_named(fabric, check):
    fabric.spark(port=0)
    result = check(interfaces=["enP2p1s0f0np0", "enp1s0f0np0"])
    assert result["env"]["NCCL_SOCKET_IFNAME"] == "enP2p1s0f0np0"
    assert [rail["device"] for rail in result["rails"]] == ["roceP2p1s0f0", "rocep1s0f0"]


def test_recommended_interface_is_exact_when_its_name_is_a_prefix(fabric, check):
    fabric.rail("mlx5_0", "eth1", "192.168.100.11")
    fabric.interface("eth10", "10.0.0.11")
    env = check()["env"]
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("=eth1", "eth1")


def test_host_without_rails_still_gets_its_control_interface(fabric, check):
    fabric.interface("eth0", "10.0.0.11")
    result = check(interfaces=["eth0"])
    assert result["env"] == {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    assert ids(result) == ["FABRIC.NO_DEVICE"]


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"devices": ["rocep1s0f1"]}, []),
        ({"devices": ["rocep1s0f0"]}, [("FABRIC.PORT_DOWN", "rocep1s0f0"), ("FABRIC.NO_USABLE_RAIL", "fabric")]),
        ({"devices": ["mlx5_0"]}, [("FABRIC.DEVICE_UNKNOWN", "mlx5_0"), ("FABRIC.NO_USABLE_RAIL", "fabric")]),
        ({"interfaces": ["enp1s0f1np1", "eth7"]}, [("FABRIC.INTERFACE_UNKNOWN", "eth7")]),
        ({"expect_rails": 3}, [("FABRIC.RAILS_MISSING", "fabric")]),
        ({"expect_mtu": 4200}, [("FABRIC.MTU_MISMATCH", "rocep1s0f1"), ("FABRIC.MTU_MISMATCH", "roceP2p1s0f1")]),
    ],
)
def test_what_is_named_or_planned_must_be_there(fabric, check, options, expected):
    fabric.spark(port=1)
    assert subjects(check(**options)) == expected


def test_two_rails_in_one_subnet(fabric, check):
    fabric.spark(port=1, first=100, second=100)
    assert subjects(check()) == [("FABRIC.SHARED_SUBNET", "enp1s0f1np1, enP2p1s0f1np1")]


def test_interface_that_is_down_makes_an_active_port_useless(fabric, check):
    fabric.rail("rocep1s0f1", "enp1s0f1np1", "192.168.100.11")
    fabric.write("class/net/enp1s0f1np1/operstate", "down")
    result = check()
    assert ids(result) == ["FABRIC.NO_USABLE_RAIL", "FABRIC.INTERFACE_DOWN"]


def test_infiniband_needs_no_address(fabric, check):
    fabric.device("mlx5_0", "ib0")
    fabric.write("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand")
    result = check()
    assert result["devices"][0]["usable"] is True
    assert result["env"] == {"NCCL_IB_HCA": "=mlx5_0", "NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0"}


def test_address_0_0_0_0_is_no_address(fabric, check):
    fabric.interface("enp1s0f1np1")
    fabric.device("rocep1s0f1", "enp1s0f1np1", gids={1: (LINK_LOCAL_GID, "RoCE v2"), 3: (gid_of("0.0.0.0"), "RoCE v2")})
    assert check()["devices"][0]["usable"] is False


def test_gid_of_roce_v1_is_not_enough(fabric, check):
    fabric.interface("enp1s0f1np1", "192.168.100.11")
    fabric.device("rocep1s0f1", "enp1s0f1np1", gids={2: (gid_of("192.168.100.11"), "IB/RoCE v1"), 3: (EMPTY_GID, "")})
    assert check()["devices"][0]["roce_v2_ipv4_gid_index"] is None


@pytest.mark.parametrize(
    "full, small, expected, reachable",
    [
        (ToolResult(0, "", ""), ToolResult(0, "", ""), [], True),
        (ToolResult(1, "", "message too long, mtu=1500"), ToolResult(0, "", ""), ["FABRIC.PEER_MTU"], True),
        (
            ToolResult(1, "100% packet loss", ""),
            ToolResult(1, "100% packet loss", ""),
            ["FABRIC.PEER_UNREACHABLE"],
            False,
        ),
        (ToolResult(127, "", "", missing=True), ToolResult(127, "", "", missing=True), ["FABRIC.PING_MISSING"], False),
    ],
)
def test_peers(fabric, check, monkeypatch, full, small, expected, reachable):
    fabric.spark(port=1)
    monkeypatch.setattr(_fabric_check, "ping", lambda address, payload, source: full if payload > 1000 else small)
    result = check(peers=["192.168.100.12"])
    assert ids(result) == expected
    assert result["peers"] == [
        {
            "address": "192.168.100.12",
            "netdev": "enp1s0f1np1",
            "mtu": 9000,
            "reachable": reachable,
            "full_size": expected == [],
        }
    ]


def test_peer_outside_of_the_fabric(fabric, check, monkeypatch):
    fabric.spark(port=1)
    monkeypatch.setattr(_fabric_check, "ping", lambda address, payload, source: ToolResult(0, "", ""))
    result = check(peers=["10.0.0.12"])
    assert subjects(result) == [("FABRIC.PEER_OFF_FABRIC", "10.0.0.12")]


def test_ping_is_full_size_and_may_not_be_split(fabric, check, monkeypatch):
    fabric.spark(port=1)
    commands = []
    monkeypatch.setattr(
        _fabric_check, "run_tool", lambda command, timeout: commands.append(command) or ToolResult(0, "", "")
    )
    check(peers=["192.168.101.12"])
    (command,) = commands
    assert " ".join(command).endswith("-M do -s 8972 -I 192.168.101.11 192.168.101.12")


def both_ranks(case_text) -> str:
    head = case_text("002", "head.log")
    worker = head.replace("spark-a:315", "spark-b:250").replace(" rank 0 ", " rank 1 ").replace("[Rank 0]", "[Rank 1]")
    return f"{head}{worker}"


def test_all_ranks_must_prove_it(fabric, check, case_text):
    fabric.spark(port=1)
    logs = both_ranks(case_text)
    good = check(log=logs)
    assert (good["transport"]["verdict"], len(good["transport"]["ranks"])) == ("ib", 2)
    assert "NCCL.RANKS_MISSING" not in ids(good)
    lines = logs.splitlines()
    worker_falls_back = [line.replace("NET/IB/", "NET/Socket/") if "spark-b" in line else line for line in lines]
    assert check(log="\n".join(worker_falls_back))["transport"]["verdict"] == "socket"
    no_channels = [line for line in lines if "spark-b" not in line or "Channel" not in line]
    open_question = check(log="\n".join(no_channels))
    assert open_question["transport"]["verdict"] == "unknown"
    assert "NCCL.NO_EVIDENCE" in ids(open_question)


def test_ranks_of_one_log_and_of_two_are_the_same(fabric, check, case_text):
    fabric.spark(port=1)
    logs = both_ranks(case_text)
    parts = [logs[: logs.index("spark-b")], logs[logs.index("spark-b") :]]
    assert check(log=logs)["transport"] == check(log=parts)["transport"] == check(log=[logs, logs])["transport"]


@pytest.mark.parametrize("lines", [3, 7, 10, 14])
def test_log_of_one_rank_may_come_in_pieces(fabric, check, case_text, lines):
    fabric.spark(port=1)
    text = case_text("002", "head.log").splitlines(keepends=True)
    pieces = ["".join(text[:lines]), "".join(text[lines:])]
    assert check(log=pieces)["transport"] == check(log="".join(text))["transport"]


def test_the_same_failure_in_two_logs_is_said_once(fabric, check, case_text):
    fabric.spark(host=12, port=1)
    log = case_text("016", "worker.log")
    assert ids(check(log=[log, log])) == ["NCCL.REGISTRATION_FAILED"]


def test_rank_that_only_receives(fabric, check):
    fabric.spark(port=1)
    log = "spark-b:250:292 [0] NCCL INFO Channel 00/0 : 0[0] -> 3[0] [receive] via NET/IB/0\n"
    assert check(log=log)["transport"]["ranks"][0]["rank"] == 3


def test_versions_of_nccl_must_agree(fabric, check, case_text):
    fabric.spark(port=1)
    logs = both_ranks(case_text)
    older = "\n".join(line.replace("2.30.7", "2.28.9") if "spark-b" in line else line for line in logs.splitlines())
    (finding,) = [finding for finding in check(log=older)["findings"] if finding["severity"] == "error"]
    assert finding["id"] == "NCCL.VERSION_MISMATCH"
    assert "2.28.9, 2.30.7" in finding["message"]


def test_channels_within_a_host_are_no_evidence(fabric, check, case_text):
    fabric.spark(port=1)
    log = (
        case_text("002", "head.log")
        .replace("via NET/IB/0", "via SHM/direct/direct")
        .replace("via NET/IB/1", "via P2P/IPC")
    )
    assert check(log=log)["transport"]["verdict"] == "unknown"


def test_log_without_nccl(fabric, check):
    fabric.spark(port=1)
    assert ids(check(log="INFO: Started server process\n")) == ["NCCL.NO_EVIDENCE"]
    assert check()["transport"]["verdict"] == "unknown"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"log_path": ["/nowhere/rank0.log"]}, "log_path: cannot read /nowhere/rank0.log"),
        ({"peers": ["spark-b"]}, "peers: 'spark-b' is not an IPv4 address"),
        ({"log": [["nested"]]}, "log: it must be a text"),
    ],
)
def test_what_cannot_be_looked_at_is_a_failure(check, options, message):
    result = check(**options)
    assert result["failed"] is True
    assert message in result["msg"]


def test_addresses_come_from_iproute2(fabric, run_module, monkeypatch):
    fabric.rail("rocep1s0f1", "enp1s0f1np1")
    answer = json.dumps(
        [
            {"ifname": "lo", "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]},
            {"ifname": "enp1s0f1np1", "addr_info": [{"family": "inet", "local": "192.168.100.11", "prefixlen": 24}]},
        ]
    )
    monkeypatch.setattr(_fabric_check, "run_tool", lambda command, timeout: ToolResult(0, answer, ""))
    result = run_module(nccl_ib_check, sysfs_root=str(fabric.sysfs), env={"NCCL_SOCKET_IFNAME": "enp1"})
    assert result["devices"][0]["ipv4"] == "192.168.100.11"
    assert "NCCL.SOCKET_IFNAME_INVALID" not in ids(result)
    monkeypatch.setattr(_fabric_check, "run_tool", lambda command, timeout: ToolResult(255, "", "Netlink error"))
    failed = run_module(nccl_ib_check, sysfs_root=str(fabric.sysfs))
    assert failed["failed"] is True
    assert "Netlink error" in failed["msg"]


def test_addresses_without_iproute2(fabric, run_module, monkeypatch):
    # Of this machine's interfaces only loopback is sure.
    fabric.interface("lo")
    monkeypatch.setattr(_fabric_check, "run_tool", lambda command, timeout: ToolResult(127, "", "", missing=True))
    assert ("lo", "127.0.0.1", 8) in [(a.interface, a.ipv4, a.prefix) for a in _fabric_check.read_addresses()]
    options = {"sysfs_root": str(fabric.sysfs), "expect_rails": 0}
    assert ids(run_module(nccl_ib_check, env={"GLOO_SOCKET_IFNAME": "lo"}, **options)) == ["FABRIC.NO_DEVICE"]


def test_fail_on(fabric, check):
    fabric.spark(port=1, mtu=1500)
    assert "failed" not in check(fail_on=["error"])
    result = check(fail_on=["error", "warning"])
    assert result["failed"] is True
    assert "FABRIC.MTU_SMALL" in result["msg"]
    assert len(result["rails"]) == 2


def test_the_beginning_of_a_long_log_is_read(tmp_path):
    """NCCL speaks when it starts; an engine logs for weeks after that."""
    path = tmp_path / "engine.log"
    path.write_bytes(b"first line\n" + b"x" * 64 * 1024**2)
    assert read_logs(None, [str(path)])[0].startswith("first line")
    assert len(read_logs(None, [str(path)], 1024)[0]) == 1024
