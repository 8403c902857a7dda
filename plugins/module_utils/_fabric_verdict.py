# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the rails of a host can carry what is planned, and whether its peers can be reached over them.

PRIVATE to this collection.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._rdma_sysfs import ETHERNET, Device, Fabric
from ansible_collections.dgxspark.serving.plugins.module_utils._tool import ToolResult

# Jumbo frames: RoCE then uses its largest packets (4096). 1500 works, at 1024; reports say 0.7 to 25% less throughput.
JUMBO_MTU = 9000
# IPv4 and ICMP headers: a ping with so much less payload makes packets of exactly the MTU.
_PING_HEADERS = 28
_SMALL_PAYLOAD = 56
_PING_SECONDS = 1
_PINGS_AT_ONCE = 8
# IPv4 link-local addresses (RFC 3927), which the automatic set-up of a DGX Spark gives.
_LINK_LOCAL = ipaddress.IPv4Network("169.254.0.0/16")


def select_rails(
    fabric: Fabric, devices: list[str], interfaces: list[str]
) -> tuple[list[Device], list[Device], list[Finding]]:
    """(devices to look at, usable ones among them, findings about names that the host does not have).

    The rails stand in the order of the interfaces, so that the first one carries the control address.
    """
    findings = []
    for name in devices:
        if not fabric.device(name):
            findings.append(
                Finding(
                    "FABRIC.DEVICE_UNKNOWN",
                    ERROR,
                    name,
                    f"This host has no RDMA device {name}.",
                    f"It has: {', '.join(device.name for device in fabric.devices) or 'none'}.",
                )
            )
    for name in interfaces:
        if name not in fabric.interfaces:
            findings.append(
                Finding(
                    "FABRIC.INTERFACE_UNKNOWN",
                    ERROR,
                    name,
                    f"This host has no network interface {name}.",
                    "Names differ from host to host when cables are on different ports: set them for each host.",
                )
            )
    looked_at = [
        device
        for device in fabric.devices
        if (not devices or device.name in devices) and (not interfaces or device.netdev in interfaces)
    ]
    rails = [device for device in looked_at if device.usable]
    if interfaces:
        rails.sort(key=lambda device: interfaces.index(device.netdev))
    for device in looked_at:
        if (devices or interfaces) and not device.active:
            findings.append(
                Finding(
                    "FABRIC.PORT_DOWN",
                    ERROR,
                    device.name,
                    f"Its port is {device.state}.",
                    "Check the cable, and which port it is plugged into.",
                )
            )
    return looked_at, rails, findings


def judge_rails(
    fabric: Fabric, looked_at: list[Device], rails: list[Device], expect_rails: int | None, expect_mtu: int | None
) -> list[Finding]:
    if not fabric.devices:
        # Without an expectation it is only said: not every host needs a fabric.
        return [
            Finding(
                "FABRIC.NO_DEVICE",
                INFO if expect_rails == 0 else ERROR,
                "fabric",
                "The kernel shows no RDMA device: ranks on different hosts would talk over TCP.",
                "Load the driver (modprobe mlx5_ib) and look for the adapter with lspci.",
            )
        ]
    findings = [finding for device in looked_at if (finding := _unusable(fabric, device, expect_rails))]
    if expect_rails is not None and len(rails) < expect_rails:
        findings.append(
            Finding(
                "FABRIC.RAILS_MISSING",
                ERROR,
                "fabric",
                f"{expect_rails} rails are planned, {len(rails)} can be used"
                + (f": {', '.join(device.name for device in rails)}." if rails else "."),
                "See the other findings for the reason of each device, or plan fewer rails.",
            )
        )
    elif not rails and expect_rails is None:
        findings.append(
            Finding(
                "FABRIC.NO_USABLE_RAIL",
                ERROR,
                "fabric",
                "No RDMA device can be used: ranks on different hosts would talk over TCP.",
                "See the reasons of the devices.",
                "; ".join(f"{device.name}: {device.reason}" for device in looked_at),
            )
        )
    return findings + _judge_mtu(rails, expect_mtu) + _judge_subnets(rails)


def _unusable(fabric: Fabric, device: Device, expect_rails: int | None) -> Finding | None:
    """A port whose link is up and which NCCL can still not use. That a port is down is no fault: most have no cable."""
    if not device.active or device.usable:
        return None
    twin = fabric.twin(device)
    share = ""
    if twin and twin.usable:
        share = f" It is the other half of the port of {twin.name}: without it a part of the link's bandwidth is lost."
    needed = expect_rails is not None and expect_rails > sum(other.usable for other in fabric.devices)
    return Finding(
        "FABRIC.NO_IPV4_GID" if device.netdev_up else "FABRIC.INTERFACE_DOWN",
        ERROR if needed else WARNING,
        device.name,
        f"Its link is up, but it cannot be used: {device.reason}.{share}",
        f"Give {device.netdev or 'its interface'} an address in a subnet of its own and MTU {JUMBO_MTU} (netplan), or leave "
        "it out of NCCL_IB_HCA.",
    )


def _judge_mtu(rails: list[Device], expect_mtu: int | None) -> list[Finding]:
    findings = []
    mtus = sorted({device.mtu for device in rails if device.mtu})
    remedy = "Set it with netplan on both ends of the cable: what nmcli or ip set is lost at a reboot."
    for device in rails:
        if not device.mtu:
            continue
        evidence = f"/sys/class/net/{device.netdev}/mtu: {device.mtu}"
        if expect_mtu is not None and device.mtu != expect_mtu:
            message = f"{device.netdev} has MTU {device.mtu}, {expect_mtu} is planned."
        elif expect_mtu is None and len(mtus) > 1 and device.mtu < mtus[-1]:
            message = (
                f"{device.netdev} has MTU {device.mtu}, another rail has {mtus[-1]}. If the other end of this cable has "
                f"{mtus[-1]} as well, small messages pass and large ones fail (IBV_WC_RETRY_EXC_ERR)."
            )
        elif device.link_layer == ETHERNET and device.mtu < JUMBO_MTU and expect_mtu is None:
            findings.append(
                Finding(
                    "FABRIC.MTU_SMALL",
                    WARNING,
                    device.name,
                    f"{device.netdev} has MTU {device.mtu}: it works, {JUMBO_MTU} is faster.",
                    remedy,
                    evidence,
                )
            )
            continue
        else:
            continue
        findings.append(Finding("FABRIC.MTU_MISMATCH", ERROR, device.name, message, remedy, evidence))
    return findings


def _judge_subnets(rails: list[Device]) -> list[Finding]:
    findings = []
    for number, device in enumerate(rails):
        for other in rails[number + 1 :]:
            network = _shared_network(device, other)
            if network:
                findings.append(
                    Finding(
                        "FABRIC.SHARED_SUBNET",
                        WARNING,
                        f"{device.netdev}, {other.netdev}",
                        f"Both are in {network}: the kernel sends everything through one of them.",
                        "Give each rail a subnet of its own.",
                    )
                )
    return findings


def network_of(device: Device) -> ipaddress.IPv4Network | None:
    """The subnet of a rail; link-local ones are known even if the prefix is not."""
    if device.address and device.address.ipv4 == device.ipv4:
        return device.address.network
    if device.ipv4 and ipaddress.IPv4Address(device.ipv4) in _LINK_LOCAL:
        return _LINK_LOCAL
    return None


def _shared_network(device: Device, other: Device) -> ipaddress.IPv4Network | None:
    if device.netdev == other.netdev:
        return None
    first, second = network_of(device), network_of(other)
    return first if first and second and first.overlaps(second) else None


@dataclass(frozen=True)
class Peer:
    """Whether an address could be reached; full_size: with packets of the MTU that were not split."""

    address: str
    netdev: str
    mtu: int
    reachable: bool
    full_size: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# Sends pings: (address, payload in bytes, source address or empty) and returns what ping answered.
Ping = Callable[[str, int, str], ToolResult]


def ping_command(address: str, payload: int, source: str) -> list[str]:
    """A ping of one packet that must not be split on its way."""
    bound = ["-I", source] if source else []
    return [
        "ping",
        "-n",
        "-q",
        "-c",
        "1",
        "-W",
        str(_PING_SECONDS),
        "-M",
        "do",
        "-s",
        str(payload),
        *bound,
        address,
    ]


def reach_peers(
    peers: Iterable[str], rails: list[Device], expect_mtu: int | None, ping: Ping
) -> tuple[list[Peer], list[Finding]]:
    addresses = list(peers)
    if not addresses:
        return [], []
    with ThreadPoolExecutor(_PINGS_AT_ONCE) as pool:
        answers = list(pool.map(lambda address: _reach(address, rails, expect_mtu, ping), addresses))
    return [peer for peer, _findings in answers], [finding for _peer, findings in answers for finding in findings]


def _reach(address: str, rails: list[Device], expect_mtu: int | None, ping: Ping) -> tuple[Peer, list[Finding]]:
    rail = next((rail for rail in rails if (net := network_of(rail)) and ipaddress.IPv4Address(address) in net), None)
    findings = []
    if rail is None and rails:
        subnets = ", ".join(str(network) for rail in rails if (network := network_of(rail))) or "unknown"
        findings.append(
            Finding(
                "FABRIC.PEER_OFF_FABRIC",
                WARNING,
                address,
                f"It is in none of the rails' subnets ({subnets}): the way to it may not be the fabric.",
                "Check the fabric addresses of both hosts.",
            )
        )
    mtu = (rail.mtu if rail else None) or expect_mtu or min((rail.mtu for rail in rails if rail.mtu), default=1500)
    source, netdev = (rail.ipv4, rail.netdev) if rail else ("", "")
    full = ping(address, mtu - _PING_HEADERS, source)
    if full.missing:
        findings.append(
            Finding("FABRIC.PING_MISSING", ERROR, "fabric", "There is no ping on this host.", "Install iputils-ping.")
        )
        return Peer(address, netdev, mtu, False, False), findings
    if full.ok:
        return Peer(address, netdev, mtu, True, True), findings
    small = ping(address, _SMALL_PAYLOAD, source)
    if small.ok:
        findings.append(
            Finding(
                "FABRIC.PEER_MTU",
                ERROR,
                address,
                f"It answers small packets, but not packets of MTU {mtu}: something on the way has a smaller MTU. NCCL "
                "would connect and then fail with large messages (IBV_WC_RETRY_EXC_ERR).",
                f"Set the same MTU on both ends of the cable{f' of {netdev}' if netdev else ''} and on a switch between them.",
                full.complaint,
            )
        )
    else:
        findings.append(
            Finding(
                "FABRIC.PEER_UNREACHABLE",
                ERROR,
                address,
                f"It does not answer{f' over {netdev}' if netdev else ''}.",
                "Check the cable, the addresses of both ends, and that the other host is up.",
                small.complaint,
            )
        )
    return Peer(address, netdev, mtu, small.ok, False), findings
