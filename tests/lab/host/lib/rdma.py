"""/sys/class/infiniband of a Spark: a ConnectX-7 whose two cabled functions follow the interfaces of this host."""

from __future__ import annotations

import fcntl
import json
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from memory import write_in_place

HOST_FILE = Path("/etc/lab/host.json")
NET = Path("/sys/class/net")

# As a Spark shows them (field reports with firmware 28.45.4028).
FIRMWARE = "28.45.4028"
BOARD = "NVD0000000087"
DEVICE_TYPE = "MT4129"
RATE_UP = "200 Gb/sec (4X HDR)"
RATE_DOWN = "40 Gb/sec (4X QDR)"
GID_SLOTS = 8  # a real port has 255; the first few are what is ever used
EMPTY_GID = ":".join(["0000"] * 8)

SIOCGIFADDR = 0x8915  # linux/sockios.h


@dataclass(frozen=True)
class Interface:
    name: str
    up: bool
    mac: bytes
    ipv4: str | None


def read_interface(name: str) -> Interface:
    def fact(attribute: str) -> str:
        try:
            return (NET / name / attribute).read_text().strip()
        except OSError:
            return ""  # the attribute carrier of an interface that is down cannot be read

    mac = bytes.fromhex(fact("address").replace(":", "")) or bytes(6)
    return Interface(name, fact("carrier") == "1" and fact("operstate") == "up", mac, _ipv4(name))


def _ipv4(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            answer = fcntl.ioctl(handle, SIOCGIFADDR, struct.pack("256s", name.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _words(data: bytes) -> str:
    return ":".join(data[i : i + 2].hex() for i in range(0, len(data), 2))


def _eui64(mac: bytes) -> bytes:
    return bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:6]


def gid_table(interface: Interface) -> list[tuple[str, str]]:
    """(GID, type) by index: each address once for RoCE v1 and once for RoCE v2, the link-local one first."""
    gids = [_words(b"\xfe\x80" + bytes(6) + _eui64(interface.mac))]
    if interface.ipv4:
        gids.append(_words(bytes(10) + b"\xff\xff" + socket.inet_aton(interface.ipv4)))
    return [(gid, kind) for gid in gids for kind in ("IB/RoCE v1", "RoCE v2")]


def port_files(interface: Interface) -> dict[str, str | None]:
    """Path below the device -> text; None: the file cannot be read (a real empty slot answers EINVAL)."""
    files: dict[str, str | None] = {
        "fw_ver": FIRMWARE,
        "board_id": BOARD,
        "hca_type": DEVICE_TYPE,
        "node_type": "1: CA",
        "node_guid": _words(_eui64(interface.mac)),
        "sys_image_guid": _words(_eui64(interface.mac)),
        "ports/1/state": "4: ACTIVE" if interface.up else "1: DOWN",
        "ports/1/phys_state": "5: LinkUp" if interface.up else "3: Disabled",
        "ports/1/rate": RATE_UP if interface.up else RATE_DOWN,
        "ports/1/link_layer": "Ethernet",
        f"device/net/{interface.name}/ifindex": None,
    }
    table = gid_table(interface)
    for index in range(GID_SLOTS):
        gid, kind = table[index] if index < len(table) else (EMPTY_GID, None)
        files[f"ports/1/gids/{index}"] = gid
        files[f"ports/1/gid_attrs/types/{index}"] = kind
        files[f"ports/1/gid_attrs/ndevs/{index}"] = interface.name if kind else None
    return files


class Fabric:
    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._devices: dict[str, str] = json.loads(HOST_FILE.read_text())["rdma_devices"]
        self._last: dict[str, Interface] = {}

    def update(self) -> None:
        for device, name in self._devices.items():
            interface = read_interface(name)
            if self._last.get(device) != interface:
                self._write(self.tree / device, interface)
                self._last[device] = interface

    @staticmethod
    def _write(folder: Path, interface: Interface) -> None:
        for name, text in port_files(interface).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink(missing_ok=True)
            else:
                write_in_place(path, text + "\n")
