# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""RDMA devices and network interfaces of a host, from sysfs, and the addresses of the interfaces.

PRIVATE to this collection. Only files are read: no tool of OFED or rdma-core is needed.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import re
import socket
import struct
from dataclasses import dataclass, field

ACTIVE = "ACTIVE"
ETHERNET = "Ethernet"
ROCE_V2 = "RoCE v2"
# The GID table of a ConnectX-7 has 256 entries, almost all empty; reading ends at this many.
_GID_LIMIT = 256
# linux/sockios.h
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
# On a DGX Spark each QSFP port is reached through two PCIe domains: rocep1s0f0 and roceP2p1s0f0 are twins.
_TWIN = re.compile(r"^(roce)(P\d+)?(p\d+s\d+f\d+)$")


@dataclass(frozen=True)
class Address:
    """An IPv4 address of an interface with the length of its prefix."""

    interface: str
    ipv4: str
    prefix: int

    @property
    def network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"{self.ipv4}/{self.prefix}", strict=False)


@dataclass(frozen=True)
class Interface:
    """A network interface. up: it can carry packets."""

    name: str
    mtu: int
    up: bool


@dataclass(frozen=True)
class Gid:
    """An entry of a port's GID table. ipv4: the address in it, or empty."""

    index: int
    kind: str
    interface: str
    ipv4: str


@dataclass(frozen=True)
class Device:
    """One port of an RDMA device. state: ACTIVE, DOWN, INIT, ARMED; reason: why it is not usable, or empty."""

    name: str
    port: int
    netdev: str
    state: str
    link_layer: str
    rate_gbps: float | None
    mtu: int | None
    gids: tuple[Gid, ...] = ()
    addresses: tuple[Address, ...] = ()
    netdev_up: bool = False

    @property
    def active(self) -> bool:
        return self.state == ACTIVE

    @property
    def gid(self) -> Gid | None:
        """The GID that NCCL picks by itself: RoCE v2 with an IPv4 address."""
        return next((gid for gid in self.gids if gid.kind == ROCE_V2 and gid.ipv4), None)

    @property
    def address(self) -> Address | None:
        """The address of the GID with its prefix, or the first of the interface."""
        wanted = self.gid.ipv4 if self.gid else ""
        return next((address for address in self.addresses if address.ipv4 == wanted), next(iter(self.addresses), None))

    @property
    def ipv4(self) -> str:
        return self.gid.ipv4 if self.gid else self.addresses[0].ipv4 if self.addresses else ""

    @property
    def reason(self) -> str:
        if not self.active:
            return f"the port is {self.state}"
        if self.link_layer != ETHERNET:
            return ""
        if not self.netdev:
            return "it has no network interface"
        if not self.netdev_up:
            return f"its interface {self.netdev} is down"
        if not self.gid:
            return f"it has no RoCE v2 GID with an IPv4 address, because {self.netdev} has no IPv4 address"
        return ""

    @property
    def usable(self) -> bool:
        return not self.reason

    def has_gid_index(self, index: int) -> bool:
        """Whether the entry can be used for a connection to another host."""
        return any(gid.index == index and gid.kind == ROCE_V2 and gid.ipv4 for gid in self.gids)


@dataclass(frozen=True)
class Fabric:
    """What a host has. devices in the order of PCI domains and functions."""

    devices: tuple[Device, ...] = ()
    interfaces: dict[str, Interface] = field(default_factory=dict)
    addresses: tuple[Address, ...] = ()

    def device(self, name: str) -> Device | None:
        return next((device for device in self.devices if device.name == name), None)

    def twin(self, device: Device) -> Device | None:
        """The other device of the same physical port; None on hosts that are not built like a DGX Spark."""
        own = _TWIN.match(device.name)
        if not own:
            return None
        for other in self.devices:
            found = _TWIN.match(other.name)
            if found and other.name != device.name and found[3] == own[3] and bool(found[2]) != bool(own[2]):
                return other
        return None

    def addresses_of(self, interface: str) -> tuple[Address, ...]:
        return tuple(address for address in self.addresses if address.interface == interface)


def parse_addresses(text: str) -> tuple[Address, ...]:
    """The answer to C(ip -j -4 addr show); raises ValueError for anything else."""
    found = []
    for link in json.loads(text or "[]"):
        for address in link.get("addr_info", []):
            if address.get("family") == "inet":
                found.append(Address(link["ifname"], address["local"], int(address["prefixlen"])))
    return tuple(found)


def kernel_addresses() -> tuple[Address, ...]:
    """The first IPv4 address of each interface, for hosts without iproute2."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        for _index, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                address, mask = (
                    socket.inet_ntoa(fcntl.ioctl(handle, call, request)[20:24])
                    for call in (_SIOCGIFADDR, _SIOCGIFNETMASK)
                )
            except OSError:
                # It has no IPv4 address.
                continue
            found.append(Address(name, address, ipaddress.IPv4Network(f"0.0.0.0/{mask}").prefixlen))
    return tuple(found)


def read_fabric(sysfs_root: str, addresses: tuple[Address, ...]) -> Fabric:
    interfaces = {name: _read_interface(sysfs_root, name) for name in _list(f"{sysfs_root}/class/net")}
    devices = []
    for name in _list(f"{sysfs_root}/class/infiniband"):
        folder = f"{sysfs_root}/class/infiniband/{name}"
        for port in sorted(int(number) for number in _list(f"{folder}/ports") if number.isdigit()):
            devices.append(_read_device(folder, name, port, interfaces, addresses))
    # rocep1s0f0 before roceP2p1s0f0: the domain that every host has comes first.
    devices.sort(key=lambda device: (device.name.casefold(), device.port))
    return Fabric(tuple(devices), interfaces, addresses)


def _read_device(
    folder: str, name: str, port: int, interfaces: dict[str, Interface], addresses: tuple[Address, ...]
) -> Device:
    place = f"{folder}/ports/{port}"
    gids = tuple(_read_gids(place))
    netdevs = [gid.interface for gid in gids if gid.interface] or _list(f"{folder}/device/net")
    netdev = netdevs[0] if netdevs else ""
    interface = interfaces.get(netdev)
    rate = re.match(r"[\d.]+", _read(f"{place}/rate"))
    return Device(
        name=name,
        port=port,
        netdev=netdev,
        state=_read(f"{place}/state").partition(":")[2].strip() or "unknown",
        link_layer=_read(f"{place}/link_layer"),
        rate_gbps=float(rate.group()) if rate else None,
        mtu=interface.mtu if interface else None,
        gids=gids,
        addresses=tuple(address for address in addresses if netdev and address.interface == netdev),
        netdev_up=interface.up if interface else False,
    )


def _read_gids(place: str) -> list[Gid]:
    found = []
    for number in sorted(int(name) for name in _list(f"{place}/gids") if name.isdigit())[:_GID_LIMIT]:
        gid = _read(f"{place}/gids/{number}")
        if not gid.strip("0:"):
            continue
        kind = _read(f"{place}/gid_attrs/types/{number}")
        found.append(Gid(number, kind, _read(f"{place}/gid_attrs/ndevs/{number}"), _ipv4_of(gid)))
    return found


def _ipv4_of(gid: str) -> str:
    """The IPv4 address in a GID; empty for others, and for 0.0.0.0."""
    try:
        mapped = ipaddress.IPv6Address(gid).ipv4_mapped
    except ValueError:
        return ""
    return str(mapped) if mapped and int(mapped) else ""


def _read_interface(sysfs_root: str, name: str) -> Interface:
    folder = f"{sysfs_root}/class/net/{name}"
    mtu = _read(f"{folder}/mtu")
    # Virtual interfaces and loopback say "unknown" when they work.
    return Interface(name, int(mtu) if mtu.isdigit() else 0, _read(f"{folder}/operstate") in ("up", "unknown"))


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: str) -> str:
    """The text of an attribute; empty when it cannot be read: empty GID slots answer "Invalid argument"."""
    try:
        with open(path, encoding="ascii", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return ""
