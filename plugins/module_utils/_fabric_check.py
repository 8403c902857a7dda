# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One look at the fabric of a host: RDMA devices, addresses, ways to the other hosts, and what NCCL has written.

PRIVATE to this collection. Module nccl_ib_check is this look alone; module host_survey has it among others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _fabric_verdict as fabric_verdict
from ansible_collections.dgxspark.serving.plugins.module_utils import _nccl_verdict as nccl_verdict
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import (
    Finding,
    describe,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._log_input import CannotLook, log_arguments, read_logs
from ansible_collections.dgxspark.serving.plugins.module_utils._memory import parse_meminfo
from ansible_collections.dgxspark.serving.plugins.module_utils._nccl_env import (
    EnvironmentJudge,
    recommended_environment,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._nccl_log import RankLog, parse_logs
from ansible_collections.dgxspark.serving.plugins.module_utils._rdma_sysfs import (
    Address,
    Device,
    kernel_addresses,
    parse_addresses,
    read_fabric,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._tool import ToolResult, run_tool

# Both tools answer at once; a ping waits for its packets, see ping_command.
TOOL_SECONDS = 10.0


def read_addresses() -> tuple[Address, ...]:
    answer = run_tool(["ip", "-j", "-4", "addr", "show"], TOOL_SECONDS)
    if answer.missing:
        return kernel_addresses()
    if not answer.ok:
        raise CannotLook(f"Cannot read the addresses of this host: ip addr: {answer.complaint}")
    return parse_addresses(answer.stdout)


def ping(address: str, payload: int, source: str) -> ToolResult:
    """Once more where the first packet got no answer: it may get lost to address resolution."""
    command = fabric_verdict.ping_command(address, payload, source)
    answer = run_tool(command, TOOL_SECONDS)
    return answer if answer.ok or answer.missing else run_tool(command, TOOL_SECONDS)


def check_peers(peers: list[str]) -> list[str]:
    for peer in peers:
        try:
            ipaddress.IPv4Address(peer)
        except ValueError:
            raise CannotLook(f"peers: {peer!r} is not an IPv4 address") from None
    return peers


def has_broken_cma(proc_root: str) -> bool:
    try:
        with open(f"{proc_root}/meminfo", encoding="ascii") as handle:
            return parse_meminfo(handle.read()).broken_cma
    except (OSError, ValueError):
        return False


def device_result(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "port": device.port,
        "netdev": device.netdev,
        "state": device.state,
        "link_layer": device.link_layer,
        "rate_gbps": device.rate_gbps,
        "mtu": device.mtu,
        "ipv4": device.ipv4,
        "roce_v2_ipv4_gid_index": device.gid.index if device.gid else None,
        "usable": device.usable,
        "reason": device.reason,
    }


def rail_result(device: Device) -> dict[str, Any]:
    return {
        "device": device.name,
        "netdev": device.netdev,
        "ipv4": device.ipv4,
        "subnet": str(fabric_verdict.network_of(device) or ""),
        "mtu": device.mtu,
        "rate_gbps": device.rate_gbps,
    }


def summary(devices: list[Device], ranks: list[RankLog], findings: list[Finding]) -> str:
    lines = []
    for device in devices:
        heading = f"{device.name}/{device.port} {device.netdev or '-'}:"
        if device.usable:
            rate = f", {device.rate_gbps:g} Gb/s" if device.rate_gbps else ""
            lines.append(f"{heading} usable, {device.ipv4 or '-'}, MTU {device.mtu or '-'}{rate}")
        else:
            lines.append(f"{heading} not usable: {device.reason}")
    if ranks:
        lines.append(f"transport in the logs: {nccl_verdict.overall_verdict(ranks)}")
    return "\n".join([*lines, describe(findings)]).strip()


def fabric_arguments() -> dict[str, Any]:
    """The options of the look, as an argument spec."""
    return {
        "sysfs_root": {"type": "path", "default": "/sys"},
        "proc_root": {"type": "path", "default": "/proc"},
        "devices": {"type": "list", "elements": "str", "default": []},
        "interfaces": {"type": "list", "elements": "str", "default": []},
        "peers": {"type": "list", "elements": "str", "default": []},
        "env": {"type": "dict", "default": {}},
        **log_arguments(),
        "expect_rails": {"type": "int"},
        "expect_mtu": {"type": "int"},
    }


def check_fabric(params: Mapping[str, Any]) -> dict[str, Any]:
    """What module nccl_ib_check returns, with the findings as they are. Raises CannotLook.

    params: the options that fabric_arguments() names.
    """
    logs = read_logs(params["log"], params["log_path"])
    peers = check_peers(params["peers"])
    fabric = read_fabric(params["sysfs_root"], read_addresses())
    looked_at, rails, findings = fabric_verdict.select_rails(fabric, params["devices"], params["interfaces"])
    findings += fabric_verdict.judge_rails(fabric, looked_at, rails, params["expect_rails"], params["expect_mtu"])
    reached, peer_findings = fabric_verdict.reach_peers(peers, rails, params["expect_mtu"], ping)
    findings += peer_findings
    findings += EnvironmentJudge(fabric, params["env"]).judge()
    ranks = parse_logs(logs)
    around = nccl_verdict.Surroundings(
        fabric=fabric,
        rails=rails,
        expect_rails=params["expect_rails"],
        empty_gid_index=params["env"].get("NCCL_IB_GID_INDEX") == "",
        broken_cma=has_broken_cma(params["proc_root"]),
    )
    findings += nccl_verdict.judge_logs(ranks, around)
    if logs and not ranks:
        findings.append(nccl_verdict.nothing_said())
    return {
        "devices": [device_result(device) for device in looked_at],
        "rails": [rail_result(device) for device in rails],
        "env": recommended_environment(fabric, rails, params["interfaces"]),
        "peers": [peer.as_dict() for peer in reached],
        "transport": nccl_verdict.transport_result(ranks),
        "findings": findings,
        "msg": summary(looked_at, ranks, findings),
    }
