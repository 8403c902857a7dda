#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_ib_check
short_description: Check whether NCCL will use the RDMA fabric, and whether it did
version_added: 0.1.0
description:
  - Reads the RDMA devices of a host from C(sysfs), says which of them NCCL can use and why the others cannot be used, and
    returns the environment that ranks on this host should run with.
  - Judges a planned environment (O(env)) against what the host has.
  - Reads the output of ranks that ran with C(NCCL_DEBUG=INFO) (O(log), O(log_path)) and says which transport really carried
    data between hosts. NCCL falls back to TCP without an error, so a served request proves nothing.
  - That a port is down is no fault, unless it is named. Most ports have no cable.
  - No tools of OFED are needed.
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
  - dgxspark.serving.attributes.actiongroup_spark
  - dgxspark.serving.findings
options:
  sysfs_root:
    description: Where the C(sysfs) file system of the host is.
    type: path
    default: /sys
  proc_root:
    description: Where the C(proc) file system of the host is. It tells why memory could not be registered.
    type: path
    default: /proc
  devices:
    description: Look at these RDMA devices only. Each of them must be up.
    type: list
    elements: str
    default: []
  interfaces:
    description:
      - Look at RDMA devices of these network interfaces only. Each of them must be up.
      - The first one is the interface over which ranks find each other.
    type: list
    elements: str
    default: []
  peers:
    description:
      - Addresses of other hosts on the fabric. Each must answer packets of the full MTU of its rail that may not be split.
    type: list
    elements: str
    default: []
  env:
    description:
      - The environment that is planned for the ranks on this host.
      - V(null) stands for a variable that is not set. An empty string does not.
    type: dict
    default: {}
  log:
    description:
      - Output of ranks, a text or a list of texts. One text can hold several ranks.
      - Give the output of one start only. What failed in an earlier one is judged as well.
    type: raw
  log_path:
    description: Files on the host with output of ranks.
    type: list
    elements: path
    default: []
  expect_rails:
    description: How many rails are planned. Fewer is an error. V(0) if no fabric is needed.
    type: int
  expect_mtu:
    description: The MTU that all rails must have.
    type: int
author:
  - dgxspark.serving contributors (@dgxspark)
seealso:
  - module: dgxspark.serving.gpu_memory_check
  - module: dgxspark.serving.registry_probe
"""

EXAMPLES = r"""
- name: Check that both rails can be used and that the other host can be reached over them
  dgxspark.serving.nccl_ib_check:
    expect_rails: 2
    expect_mtu: 9000
    peers:
      - 192.168.100.12
      - 192.168.101.12
  register: fabric

- name: Judge an environment before it is used
  dgxspark.serving.nccl_ib_check:
    env:
      NCCL_IB_HCA: rocep1s0f0,roceP2p1s0f0
      NCCL_SOCKET_IFNAME: enp1s0f0np0

- name: Fail unless the ranks really use RDMA
  dgxspark.serving.nccl_ib_check:
    log_path: /var/log/vllm/rank0.log
  register: nccl
  failed_when: nccl.transport.verdict != 'ib'
"""

RETURN = r"""
msg:
  description: A summary for a terminal.
  returned: always
  type: str
  sample: |-
    rocep1s0f0/1 enp1s0f0np0: usable, 192.168.100.11, MTU 9000, 200 Gb/s
    roceP2p1s0f0/1 enP2p1s0f0np0: usable, 192.168.101.11, MTU 9000, 200 Gb/s
devices:
  description: The ports of the RDMA devices that were looked at.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the device.
      type: str
      sample: rocep1s0f0
    port:
      description: Number of the port.
      type: int
      sample: 1
    netdev:
      description: Its network interface, or empty.
      type: str
      sample: enp1s0f0np0
    state:
      description: State of the port, such as V(ACTIVE) or V(DOWN).
      type: str
      sample: ACTIVE
    link_layer:
      description: V(Ethernet) or V(InfiniBand).
      type: str
      sample: Ethernet
    rate_gbps:
      description: Rate of the link. V(null) if unknown.
      type: float
      sample: 200.0
    mtu:
      description: MTU of the network interface. V(null) if there is none.
      type: int
      sample: 9000
    ipv4:
      description: IPv4 address with which the device is reached, or empty.
      type: str
      sample: 192.168.100.11
    roce_v2_ipv4_gid_index:
      description: Index of the GID that NCCL picks by itself. V(null) if there is none. It moves - do not pin it.
      type: int
      sample: 3
    usable:
      description: Whether NCCL can use the port for connections to other hosts.
      type: bool
    reason:
      description: Why it is not usable, or empty.
      type: str
      sample: the port is DOWN
rails:
  description: The usable ports, in the order of O(interfaces), otherwise by PCI address.
  returned: always
  type: list
  elements: dict
  contains:
    device:
      description: Name of the RDMA device.
      type: str
      sample: rocep1s0f0
    netdev:
      description: Its network interface.
      type: str
      sample: enp1s0f0np0
    ipv4:
      description: Its address.
      type: str
      sample: 192.168.100.11
    subnet:
      description: The subnet of the address, or empty if it is not known.
      type: str
      sample: 192.168.100.0/24
    mtu:
      description: MTU of the interface.
      type: int
      sample: 9000
    rate_gbps:
      description: Rate of the link.
      type: float
      sample: 200.0
env:
  description: The environment that ranks on this host should run with. It differs from host to host.
  returned: always
  type: dict
  sample:
    GLOO_SOCKET_IFNAME: enp1s0f0np0
    NCCL_IB_ADDR_FAMILY: AF_INET
    NCCL_IB_HCA: =rocep1s0f0,roceP2p1s0f0
    NCCL_IB_ROCE_VERSION_NUM: "2"
    NCCL_SOCKET_IFNAME: enp1s0f0np0
peers:
  description: What came of O(peers).
  returned: always
  type: list
  elements: dict
  contains:
    address:
      description: The address.
      type: str
      sample: 192.168.100.12
    netdev:
      description: The interface of the rail in whose subnet it is, or empty.
      type: str
      sample: enp1s0f0np0
    mtu:
      description: The size of the packets that were sent.
      type: int
      sample: 9000
    reachable:
      description: Whether it answered at all.
      type: bool
    full_size:
      description: Whether it answered packets of the full size.
      type: bool
transport:
  description: What the logs prove.
  returned: always
  type: dict
  contains:
    verdict:
      description: V(ib) if all ranks in the logs used RDMA between hosts, V(socket) if one did not, V(unknown) if the logs
        prove neither.
      type: str
      sample: ib
    plugin:
      description: The transport plugin of the ranks, or empty.
      type: str
      sample: IBext_v10
    nccl_version:
      description: Version of NCCL, or empty.
      type: str
      sample: 2.28.9
    devices:
      description: The RDMA devices that NCCL opened.
      type: list
      elements: str
      sample: [rocep1s0f0, roceP2p1s0f0]
    channels:
      description: Number of channels by transport.
      type: dict
      sample: {"NET/IB/0": 2, "NET/IB/1": 2}
    ranks:
      description: The same for each process in the logs, with V(host), V(pid), V(rank) and V(nranks).
      type: list
      elements: dict
findings:
  description: What the check has to say, worst first.
  returned: always
  type: list
  elements: dict
  sample:
    - id: FABRIC.NO_IPV4_GID
      severity: warning
      subject: roceP2p1s0f1
      message: Its link is up, but it cannot be used - it has no RoCE v2 GID with an IPv4 address.
      remedy: Give enP2p1s0f1np1 an address in a subnet of its own.
      evidence: ""
"""

import ipaddress
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils import _fabric_verdict as fabric_verdict
from ansible_collections.dgxspark.serving.plugins.module_utils import _nccl_verdict as nccl_verdict
from ansible_collections.dgxspark.serving.plugins.module_utils._check_module import finish
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import (
    Finding,
    describe,
    findings_argument_spec,
)
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


class CannotLook(Exception):
    """Something that is needed cannot be read; the message says what."""


def read_addresses() -> tuple[Address, ...]:
    answer = run_tool(["ip", "-j", "-4", "addr", "show"], TOOL_SECONDS)
    if answer.missing:
        return kernel_addresses()
    if not answer.ok:
        raise CannotLook(f"Cannot read the addresses of this host: ip addr: {answer.complaint}")
    return parse_addresses(answer.stdout)


def ping(address: str, payload: int, source: str) -> ToolResult:
    return run_tool(fabric_verdict.ping_command(address, payload, source), TOOL_SECONDS)


def read_logs(texts: Any, paths: list[str]) -> list[str]:
    logs = [texts] if isinstance(texts, str) else list(texts or [])
    if not all(isinstance(text, str) for text in logs):
        raise CannotLook("log: it must be a text or a list of texts")
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as handle:
                logs.append(handle.read())
        except OSError as error:
            raise CannotLook(f"log_path: cannot read {path}: {error.strerror}") from error
    return logs


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


def check(params: dict[str, Any]) -> dict[str, Any]:
    """The results of the module, with the findings as they are."""
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


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "proc_root": {"type": "path", "default": "/proc"},
            "devices": {"type": "list", "elements": "str", "default": []},
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "peers": {"type": "list", "elements": "str", "default": []},
            "env": {"type": "dict", "default": {}},
            # No list: Ansible would split a text at its commas.
            "log": {"type": "raw"},
            "log_path": {"type": "list", "elements": "path", "default": []},
            "expect_rails": {"type": "int"},
            "expect_mtu": {"type": "int"},
            **findings_argument_spec(),
        },
        supports_check_mode=True,
    )
    try:
        results = check(module.params)
    except CannotLook as error:
        module.fail_json(msg=str(error))
    finish(module, changed=False, **results)


if __name__ == "__main__":
    main()
