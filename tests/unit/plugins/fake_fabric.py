# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The sysfs and the addresses of a host with RDMA devices, also made from what tools print."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from ansible_collections.dgxspark.serving.plugins.module_utils._rdma_sysfs import Address

LINK_LOCAL_GID = "fe80:0000:0000:0000:0200:5eff:fe00:1a17"
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def gid_of(ipv4: str) -> str:
    return ipaddress.IPv6Address(f"::ffff:{ipv4}").exploded


class FakeFabric:
    def __init__(self, folder: Path) -> None:
        self.sysfs = folder / "sys"
        (self.sysfs / "class/net").mkdir(parents=True)
        (self.sysfs / "class/infiniband").mkdir(parents=True)
        self.addresses: list[Address] = []

    def write(self, path: str, text: str) -> None:
        file = self.sysfs / path.removeprefix("/sys/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def interface(self, name: str, ipv4: str = "", prefix: int = 24, mtu: int = 9000, up: bool = True) -> None:
        self.write(f"class/net/{name}/mtu", str(mtu))
        self.write(f"class/net/{name}/operstate", "up" if up else "down")
        if ipv4:
            self.addresses.append(Address(name, ipv4, prefix))

    def device(
        self, name: str, netdev: str, active: bool = True, gids: dict[int, tuple[str, str]] | None = None
    ) -> None:
        """gids: (GID, type) by index."""
        port = f"class/infiniband/{name}/ports/1"
        self.write(f"{port}/state", "4: ACTIVE" if active else "1: DOWN")
        self.write(f"{port}/rate", "200 Gb/sec (4X HDR)" if active else "40 Gb/sec (4X QDR)")
        self.write(f"{port}/link_layer", "Ethernet")
        (self.sysfs / f"class/infiniband/{name}/device/net/{netdev}").mkdir(parents=True)
        for index, (gid, kind) in (gids or {}).items():
            self.write(f"{port}/gids/{index}", gid)
            if gid != EMPTY_GID:
                self.write(f"{port}/gid_attrs/types/{index}", kind)
                self.write(f"{port}/gid_attrs/ndevs/{index}", netdev)

    def rail(
        self, name: str, netdev: str, ipv4: str = "", mtu: int = 9000, active: bool = True, prefix: int = 24
    ) -> None:
        """A device with its interface and the GID table that the kernel makes of its addresses."""
        gids = {0: (LINK_LOCAL_GID, "IB/RoCE v1"), 1: (LINK_LOCAL_GID, "RoCE v2")}
        if ipv4:
            gids.update({2: (gid_of(ipv4), "IB/RoCE v1"), 3: (gid_of(ipv4), "RoCE v2")})
        self.interface(netdev, ipv4, prefix, mtu, up=active)
        self.device(name, netdev, active, gids)

    def spark(self, host: int = 11, port: int = 1, first: int = 100, second: int = 101, mtu: int = 9000) -> None:
        """A DGX Spark with a cable in one port: two rails, each in a subnet of its own."""
        for function in (0, 1):
            wired = function == port
            for domain, subnet in (("", first), ("P2", second)):
                name, netdev = f"roce{domain}p1s0f{function}", f"en{domain}p1s0f{function}np{function}"
                ipv4 = f"192.168.{subnet}.{host}" if wired else ""
                self.rail(name, netdev, ipv4, mtu if wired else 1500, active=wired)

    def from_dump(self, text: str) -> None:
        """What C(grep -H . -r) prints; messages of grep about empty slots are skipped."""
        for line in text.splitlines():
            if line.startswith("/sys/"):
                path, _colon, value = line.partition(":")
                self.write(path, value)

    def from_ip_brief(self, text: str, mtu: int = 9000) -> None:
        """What C(ip -br addr) prints."""
        for line in text.splitlines():
            name, state, *addresses = line.split()
            self.interface(name, mtu=mtu, up=state != "DOWN")
            for address in addresses:
                if ":" not in address:
                    ipv4, _slash, prefix = address.partition("/")
                    self.addresses.append(Address(name, ipv4, int(prefix)))

    def from_ibdev2netdev(self, text: str) -> None:
        """What ibdev2netdev prints; call it after the interfaces have their addresses."""
        for name, netdev, state in re.findall(r"(\S+) port 1 ==> (\S+) \((\w+)\)", text):
            own = [address.ipv4 for address in self.addresses if address.interface == netdev]
            gids = {1: (LINK_LOCAL_GID, "RoCE v2")}
            if own:
                gids[3] = (gid_of(own[0]), "RoCE v2")
            self.device(name, netdev, state == "Up", gids)
