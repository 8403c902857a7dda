# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The firewall table of a deployment: Ray, rendezvous and engine ports answer to the hosts' fabric addresses only.

A table of its own, C(inet dgxspark), that drops what asks for a connection to these ports and comes from anywhere else. Its chain
accepts everything else, so that other tables judge as before. The ports of SSH and the API, and those that the user names, are never
closed by it.

PRIVATE to this collection. Text in, text out; nothing is asked of any host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TABLE = "inet dgxspark"
SSH_PORT = 22
# Ports that software of a deployment opens although nobody asked for them: Ray's client server (ray start --head opens it),
# SGLang's and torch's rendezvous.
UNASKED_PORTS = (10001, 25000, 29500)
# vLLM's rendezvous and message queues, Gloo, NCCL and Ray's agents take ports that the kernel picks. The kernel's default of
# net.ipv4.ip_local_port_range. Services that a host means to offer do not listen there.
EPHEMERAL_PORTS = (32768, 60999)


# Where a host keeps the rules, and the set of the table that names the hosts.
RULES_FILE = "/etc/dgxspark/firewall.nft"
FABRIC_SET = "fabric"


def port_ranges(ports: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The ports of a plan: numbers, pairs of the first and the last, and dictionaries of these."""
    found: list[tuple[int, int]] = []
    for value in ports.values():
        if isinstance(value, Mapping):
            found += port_ranges(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            found.append((int(value[0]), int(value[-1])))
        elif value:
            found.append((int(value), int(value)))
    return found


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """nft refuses ranges that overlap."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


def _without(ranges: Iterable[tuple[int, int]], open_port: int) -> list[tuple[int, int]]:
    result = []
    for first, last in ranges:
        if first <= open_port <= last:
            parts = ((first, open_port - 1), (open_port + 1, last))
            result += [part for part in parts if part[0] <= part[1]]
        else:
            result.append((first, last))
    return result


def closed_ports(plan: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Ranges of ports that only hosts of the deployment reach. Empty without a firewall."""
    if not plan["firewall"]:
        return []
    ranges = _merged([*port_ranges(plan["ports"]), *((port, port) for port in UNASKED_PORTS), EPHEMERAL_PORTS])
    for port in (SSH_PORT, int(plan["api"]["port"]), *plan["open_ports"]):
        ranges = _without(ranges, port)
    return ranges


def is_within(port: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= port <= last for first, last in ranges)


def _fabric(hosts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Raises ValueError for what is no address."""
    named = {str(address) for host in hosts for address in host.get("fabric_addresses") or () if address}
    addresses = sorted(ipaddress.ip_address(address) for address in named if ipaddress.ip_address(address).version == 4)
    return [str(address) for address in addresses]


def let_in_arguments(plan: Mapping[str, Any], lets_in: Sequence[str] | None) -> list[str]:
    """What nft is told so that the table on a host, which lets in the addresses of lets_in (None: it does not stand), lets in all hosts of
    the plan. Empty where it needs nothing.
    """
    missing = [] if lets_in is None else [address for address in _fabric(plan["hosts"]) if address not in lets_in]
    return ["add", "element", *TABLE.split(), FABRIC_SET, "{ " + ", ".join(missing) + " }"] if missing else []


def ruleset(plan: Mapping[str, Any]) -> str:
    """What C(nft -f) loads: the table is replaced in one step, no packet sees it half made. Empty without a firewall."""
    if not plan["firewall"]:
        return ""
    members = ", ".join(_fabric(plan["hosts"]))
    elements = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in closed_ports(plan))
    lines = [
        "# Written by dgxspark.serving. Only this table is ours.",
        f"table {TABLE}",
        f"delete table {TABLE}",
        f"table {TABLE} {{",
        # Of one host it is empty, and there for a second one to join.
        f"    set {FABRIC_SET} {{",
        "        type ipv4_addr",
        *([f"        elements = {{ {members} }}"] if members else []),
        "    }",
        "    set closed {",
        "        type inet_service",
        "        flags interval",
        f"        elements = {{ {elements} }}",
        "    }",
        "    chain input {",
        "        type filter hook input priority filter - 10; policy accept;",
        "        # Only what opens a connection; answers to the host's own connections pass.",
        "        tcp flags & (fin | syn | rst | ack) != syn accept",
        "        iif lo accept",
        f"        ip saddr @{FABRIC_SET} ip daddr @{FABRIC_SET} accept",
        "        tcp dport @closed drop",
        "    }",
        "}",
    ]
    return "\n".join(lines) + "\n"
