# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The environment of NCCL: what a host should run with, and whether a planned value does what it seems to.

PRIVATE to this collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._rdma_sysfs import Device, Fabric

# Settings for experiments that have frozen the first all-reduce (SGLang on a three host ring).
_EXPERIMENTAL = ("NCCL_IB_USE_INLINE", "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS")


@dataclass(frozen=True)
class Selector:
    """The grammar of NCCL_IB_HCA and NCCL_SOCKET_IFNAME: ^ excludes, = is exact, otherwise each item is a prefix."""

    exclude: bool
    exact: bool
    items: tuple[tuple[str, int | None], ...]

    @classmethod
    def parse(cls, text: str) -> Selector:
        exclude = text.startswith("^")
        text = text.removeprefix("^")
        exact = text.startswith("=")
        items = []
        for item in text.removeprefix("=").split(","):
            name, _colon, port = item.strip().partition(":")
            if name:
                items.append((name, int(port) if port.isdigit() else None))
        return cls(exclude, exact, tuple(items))

    def _matches(self, item: tuple[str, int | None], name: str, port: int | None) -> bool:
        wanted, wanted_port = item
        named = name == wanted if self.exact else name.startswith(wanted)
        return named and (wanted_port is None or port is None or wanted_port == port)

    def selects(self, name: str, port: int | None = None) -> bool:
        if not self.items:
            return True
        return any(self._matches(item, name, port) for item in self.items) != self.exclude


def recommended_environment(fabric: Fabric, rails: list[Device], interfaces: list[str]) -> dict[str, str]:
    """What ranks on this host should run with. A GID index is never among it: NCCL finds a valid GID for each device.

    interfaces: that of the control address first; without rails, NCCL gets at least this one.
    """
    control = next((device.netdev for device in rails if device.netdev), "")
    if not control:
        control = next((name for name in interfaces if fabric.addresses_of(name)), "")
    environment = {}
    if control:
        ambiguous = any(name != control and name.startswith(control) for name in fabric.interfaces)
        environment["NCCL_SOCKET_IFNAME"] = f"={control}" if ambiguous else control
        environment["GLOO_SOCKET_IFNAME"] = control
    if rails:
        environment["NCCL_IB_HCA"] = "=" + ",".join(dict.fromkeys(device.name for device in rails))
        if any(device.gid for device in rails):
            environment["NCCL_IB_ADDR_FAMILY"] = "AF_INET"
            environment["NCCL_IB_ROCE_VERSION_NUM"] = "2"
    return environment


class EnvironmentJudge:
    """Judges planned variables against what the host has."""

    def __init__(self, fabric: Fabric, environment: Mapping[str, object]) -> None:
        self.fabric = fabric
        # None is a variable that is not set.
        self.environment = {name: str(value) for name, value in environment.items() if value is not None}
        selector = Selector.parse(self.environment.get("NCCL_IB_HCA", ""))
        self.selected = [
            device for device in fabric.devices if device.active and selector.selects(device.name, device.port)
        ]
        self.usable = [device for device in self.selected if device.usable]

    def judge(self) -> list[Finding]:
        judges: dict[str, Callable[[str], list[Finding]]] = {
            "NCCL_IB_HCA": self._hca,
            "NCCL_IB_GID_INDEX": self._gid_index,
            "NCCL_SOCKET_IFNAME": self._socket_interface,
            "GLOO_SOCKET_IFNAME": self._gloo_interface,
            "NCCL_NET": self._net,
            "NCCL_IB_DISABLE": self._disable,
            "NCCL_IB_ADDR_FAMILY": self._address_family,
            "NCCL_IB_ROCE_VERSION_NUM": self._roce_version,
            "NCCL_DEBUG": self._debug,
        }
        findings = []
        for name, value in self.environment.items():
            if not value and (name in judges or name.startswith("NCCL_")):
                findings.append(self._empty(name))
            elif name in judges:
                findings += judges[name](value)
            elif name in _EXPERIMENTAL and value != "0":
                findings.append(experimental(name, value))
        if self.environment and not self.environment.get("NCCL_IB_HCA"):
            findings += self._open_selection()
        return findings

    @staticmethod
    def _empty(name: str) -> Finding:
        if name == "NCCL_IB_GID_INDEX":
            return Finding(
                "NCCL.EMPTY_VALUE",
                ERROR,
                name,
                "It is set to an empty string, which is not the same as not set: NCCL reads it as 0, the link-local GID, "
                "which does not reach another host.",
                "Remove the variable (in a compose file: null, not an empty string).",
                f"{name}=",
            )
        return Finding(
            "NCCL.EMPTY_VALUE",
            WARNING,
            name,
            "It is set to an empty string, which is not the same as not set.",
            "Remove the variable, or give it a value.",
            f"{name}=",
        )

    def _hca(self, value: str) -> list[Finding]:
        if not self.selected:
            return [hca_matches_nothing(value, self.fabric)]
        unusable = [device for device in self.selected if not device.usable]
        findings = [
            Finding(
                "NCCL.HCA_NOT_USABLE",
                ERROR,
                "NCCL_IB_HCA",
                f"It selects {device.name}, which is not usable: {device.reason}.",
                f"Give {device.netdev or 'its interface'} an address in a subnet of its own, or select usable devices "
                f"only: NCCL_IB_HCA={_exactly(self.usable)}.",
                f"NCCL_IB_HCA={value}",
            )
            for device in unusable
        ]
        unused = [device for device in self.fabric.devices if device.usable and device not in self.selected]
        if unused and self.usable:
            findings.append(
                Finding(
                    "NCCL.RAIL_UNUSED",
                    WARNING,
                    "NCCL_IB_HCA",
                    f"It leaves out {', '.join(device.name for device in unused)}, which could be used as well: a rail is "
                    "a part of the link's bandwidth.",
                    f"NCCL_IB_HCA={_exactly([device for device in self.fabric.devices if device.usable])}",
                    f"NCCL_IB_HCA={value}",
                )
            )
        return findings

    def _open_selection(self) -> list[Finding]:
        """Without a selection NCCL opens every active device, usable or not."""
        return [
            Finding(
                "NCCL.HCA_OPEN",
                WARNING,
                "NCCL_IB_HCA",
                f"It is not set, so NCCL also opens {device.name}, which is not usable: {device.reason}.",
                f"Set NCCL_IB_HCA={_exactly(self.usable)}, or give {device.netdev or 'its interface'} an address.",
            )
            for device in self.selected
            if not device.usable and self.usable
        ]

    def _gid_index(self, value: str) -> list[Finding]:
        try:
            index = int(value)
        except ValueError:
            return [_invalid("NCCL_IB_GID_INDEX", value, "a number")]
        if index < 0:
            return []
        wrong = [device for device in self.selected if device.gids and not device.has_gid_index(index)]
        if not wrong:
            return [gid_index_pinned(value)]
        return [
            Finding(
                "NCCL.GID_INDEX_INVALID",
                ERROR,
                device.name,
                f"NCCL_IB_GID_INDEX is {index}, but entry {index} of {device.name} is no RoCE v2 GID with an IPv4 address"
                + (f"; that is entry {device.gid.index} there." if device.gid else "."),
                "Remove NCCL_IB_GID_INDEX: NCCL then picks a valid entry for each device. Entries move when interfaces do, "
                "so another number is no remedy.",
                f"NCCL_IB_GID_INDEX={value}",
            )
            for device in wrong
        ]

    def _socket_interface(self, value: str) -> list[Finding]:
        selector = Selector.parse(value)
        matching = [interface for name, interface in self.fabric.interfaces.items() if selector.selects(name)]
        good = [interface for interface in matching if interface.up and self.fabric.addresses_of(interface.name)]
        if good:
            return []
        return [socket_interface_invalid(value, self.fabric)]

    def _gloo_interface(self, value: str) -> list[Finding]:
        if value[0] in "^=":
            return [_invalid("GLOO_SOCKET_IFNAME", value, "the name of an interface; ^ and = are for NCCL only")]
        wrong = [name for name in value.split(",") if not self.fabric.addresses_of(name)]
        if not wrong:
            return []
        return [
            Finding(
                "NCCL.GLOO_IFNAME_INVALID",
                ERROR,
                "GLOO_SOCKET_IFNAME",
                f"This host has no interface {', '.join(wrong)} with an IPv4 address: the rank ends at its start and the "
                "others wait for it without a word.",
                f"Use one of: {_addressed(self.fabric)}. The name can differ from host to host.",
                f"GLOO_SOCKET_IFNAME={value}",
            )
        ]

    def _net(self, value: str) -> list[Finding]:
        if value.lower() == "socket":
            return [
                Finding(
                    "NCCL.SOCKET_FORCED", ERROR, "NCCL_NET", "NCCL_NET=Socket keeps NCCL off RDMA.", "Remove NCCL_NET."
                )
            ]
        if value.upper() == "IB" and not self.usable:
            return [
                Finding(
                    "NCCL.FORCED_WITHOUT_DEVICE",
                    ERROR,
                    "NCCL_NET",
                    "NCCL_NET=IB allows no fallback and there is no usable RDMA device: ranks will end with 'invalid usage'.",
                    "Bring a rail up, or remove NCCL_NET.",
                )
            ]
        return []

    @staticmethod
    def _disable(value: str) -> list[Finding]:
        if value == "0":
            return []
        return [
            Finding(
                "NCCL.IB_DISABLED",
                ERROR,
                "NCCL_IB_DISABLE",
                f"NCCL_IB_DISABLE={value} keeps NCCL off RDMA.",
                "Remove NCCL_IB_DISABLE.",
            )
        ]

    @staticmethod
    def _address_family(value: str) -> list[Finding]:
        return [] if value == "AF_INET" else [_invalid("NCCL_IB_ADDR_FAMILY", value, "AF_INET on these hosts", WARNING)]

    @staticmethod
    def _roce_version(value: str) -> list[Finding]:
        return [] if value == "2" else [_invalid("NCCL_IB_ROCE_VERSION_NUM", value, "2", WARNING)]

    @staticmethod
    def _debug(value: str) -> list[Finding]:
        if value.upper() in ("INFO", "TRACE"):
            return []
        return [
            Finding(
                "NCCL.DEBUG_TOO_QUIET",
                INFO,
                "NCCL_DEBUG",
                f"NCCL_DEBUG={value} logs nothing about the transport: whether RDMA is used cannot be seen then.",
                "Set NCCL_DEBUG=INFO.",
            )
        ]


def _exactly(devices: list[Device]) -> str:
    return "=" + ",".join(device.name for device in devices)


def _addressed(fabric: Fabric) -> str:
    return (
        ", ".join(dict.fromkeys(address.interface for address in fabric.addresses if address.interface != "lo"))
        or "none"
    )


def _invalid(name: str, value: str, wanted: str, severity: str = ERROR) -> Finding:
    return Finding(
        "NCCL.VALUE_INVALID", severity, name, f"It is {value!r}; it should be {wanted}.", "", f"{name}={value}"
    )


def gid_index_pinned(value: str) -> Finding:
    return Finding(
        "NCCL.GID_INDEX_PINNED",
        WARNING,
        "NCCL_IB_GID_INDEX",
        f"It is pinned to {value}. The entry is valid now, but entries move when an interface goes down and up.",
        "Remove NCCL_IB_GID_INDEX: NCCL then picks a valid entry for each device.",
        f"NCCL_IB_GID_INDEX={value}",
    )


def experimental(name: str, value: str) -> Finding:
    return Finding(
        "NCCL.EXPERIMENTAL_SETTING",
        WARNING,
        name,
        f"It is {value}. This setting is an experiment that has frozen the first all-reduce.",
        "Set it to 0. If it is not in the environment, it stands in /etc/nccl.conf or ~/.nccl.conf of the image: mount an "
        "empty file over it.",
        f"{name}={value}",
    )


def hca_matches_nothing(value: str, fabric: Fabric) -> Finding:
    active = [device for device in fabric.devices if device.active]
    usable = [device for device in fabric.devices if device.usable]
    present = ", ".join(device.name for device in active) or "none"
    return Finding(
        "NCCL.HCA_MATCHES_NOTHING",
        ERROR,
        "NCCL_IB_HCA",
        f"NCCL_IB_HCA={value} selects none of the active devices of this host ({present}): NCCL falls back to TCP without "
        "an error.",
        f"Set NCCL_IB_HCA={_exactly(usable)}, or remove it." if usable else "Bring a rail up.",
        f"NCCL_IB_HCA={value}",
    )


def socket_interface_invalid(value: str, fabric: Fabric) -> Finding:
    return Finding(
        "NCCL.SOCKET_IFNAME_INVALID",
        ERROR,
        "NCCL_SOCKET_IFNAME",
        f"NCCL_SOCKET_IFNAME={value} names no interface of this host that is up and has an IPv4 address.",
        f"Use one of: {_addressed(fabric)}. Hosts that are cabled on different ports need different values.",
        f"NCCL_SOCKET_IFNAME={value}",
    )
