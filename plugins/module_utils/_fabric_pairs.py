# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Both ends of the fabric side by side: what only the results of all hosts together can tell.

PRIVATE to this collection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._port_probe import NO_ANSWER, OPEN, REFUSED, UNREACHABLE

# Results by name of the host.
Results = Mapping[str, Mapping[str, Any]]
Rail = Mapping[str, Any]


def compare_fabrics(hosts: Sequence[Mapping[str, Any]], fabrics: Results) -> list[Finding]:
    """C(hosts): those of the plan; C(fabrics): host to the result of nccl_ib_check. A host without a result says so elsewhere."""
    findings: list[Finding] = []
    seen = [host for host in hosts if host["name"] in fabrics]
    for number in range(max((len(host["fabric_addresses"]) for host in seen), default=0)):
        ends: list[tuple[str, Rail]] = []
        for host in seen:
            address = next(iter(host["fabric_addresses"][number:]), "")
            rail = next((rail for rail in fabrics[host["name"]]["rails"] if rail["ipv4"] == address), None)
            if rail is not None:
                ends.append((host["name"], rail))
            elif address:
                findings.append(_address_missing(host["name"], address, fabrics[host["name"]]))
        findings += _compare_ends(number + 1, ends)
    counts = {host["name"]: len(host["fabric_addresses"]) for host in hosts}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        findings.append(
            Finding(
                "FABRIC.RAILS_UNPAIRED",
                ERROR,
                "all hosts",
                f"The hosts are planned with different numbers of rails: {told}. A rail without a partner carries nothing.",
                "Give each host the same number of spark_fabric_addresses, in the same order.",
            )
        )
    return findings


def _address_missing(name: str, address: str, fabric: Mapping[str, Any]) -> Finding:
    carrier = next((device for device in fabric["devices"] if device["ipv4"] == address), None)
    why = f"{carrier['netdev']} has it, but {carrier['reason']}" if carrier else "no RDMA device of it has that address"
    return Finding(
        "FABRIC.ADDRESS_MISSING",
        ERROR,
        name,
        f"{address} is planned for {name} (spark_fabric_addresses), and is on no usable rail of it: {why}.",
        "Bring the interface up with this address (ip -br addr), or correct spark_fabric_addresses.",
        "; ".join(
            f"{device['name']} {device['netdev']} {device['ipv4'] or 'no address'}" for device in fabric["devices"]
        ),
    )


def _compare_ends(number: int, ends: Sequence[tuple[str, Rail]]) -> list[Finding]:
    """One rail on all hosts: same subnet, same MTU, same rate."""
    told = {
        key: ", ".join(f"{name} {rail['netdev']} {rail[key] or 'unknown'}" for name, rail in ends)
        for key in ("subnet", "mtu", "rate_gbps")
    }
    findings = []
    if len({rail["subnet"] for _name, rail in ends if rail["subnet"]}) > 1:
        findings.append(
            Finding(
                "FABRIC.SUBNET_MISMATCH",
                ERROR,
                f"rail {number}",
                f"Its ends are not in one subnet: {told['subnet']}.",
                "Give both ends of a cable addresses in one subnet, with the same prefix; or correct the order of spark_fabric_addresses.",
            )
        )
    if len({rail["mtu"] for _name, rail in ends if rail["mtu"]}) > 1:
        findings.append(
            Finding(
                "FABRIC.MTU_PAIR",
                ERROR,
                f"rail {number}",
                f"Its ends have different MTUs: {told['mtu']}. Small messages pass, large ones fail (IBV_WC_RETRY_EXC_ERR).",
                "Set the same MTU on both ends with netplan: what ip or nmcli set is lost at a reboot.",
            )
        )
    if len({rail["rate_gbps"] for _name, rail in ends if rail["rate_gbps"]}) > 1:
        findings.append(
            Finding(
                "FABRIC.RATE_MISMATCH",
                WARNING,
                f"rail {number}",
                f"Its ends run at different rates (Gb/s): {told['rate_gbps']}.",
                "Check that the cable is a 200 Gb/s one and that both ports have the same firmware.",
            )
        )
    return findings


def _outcomes(name: str, address: str, probes: Results) -> Iterator[tuple[int, str]]:
    for row in probes[name]["connections"]:
        if row["peer"] == address:
            yield int(row["port"]), str(row["outcome"])


def compare_probes(
    probes: Results, firewalls: Results, let_in: Mapping[str, Sequence[str] | None] | None = None
) -> list[Finding]:
    """Which ports of a host do not answer another host, although both tried at the same time.

    let_in: host to the addresses that our own firewall on it lets in, None without one.

    A port that refuses is only a fault when the two hosts were at work at the same time: otherwise nobody listened yet.
    """
    findings = []
    # A host that answers nowhere has no address on the fabric: that has its own finding.
    probes = {name: probe for name, probe in probes.items() if probe["answering"]}
    for caller in probes:
        for called, probe in probes.items():
            if called == caller:
                continue
            outcomes = dict(_outcomes(caller, probe["address"], probes))
            met = OPEN in outcomes.values() or probes[caller]["address"] in probe["heard_from"]
            silent = sorted(port for port, outcome in outcomes.items() if outcome == NO_ANSWER)
            refusing = sorted(port for port, outcome in outcomes.items() if outcome in (REFUSED, UNREACHABLE))
            blocked = silent + [port for port in refusing if met and port in probe["answering"]]
            lets_in = (let_in or {}).get(called)
            if blocked and lets_in is not None and probes[caller]["address"] not in lets_in:
                findings.append(_unknown_to_our_firewall(caller, called, lets_in))
            elif blocked:
                findings.append(_blocked(caller, called, sorted(blocked), silent, firewalls))
            elif refusing and not met:
                findings.append(_unproven(caller, called, refusing))
    return findings


def judge_forwarding(hosts: Sequence[Mapping[str, Any]], firewalls: Results) -> list[Finding]:
    """Docker sets the policy of FORWARD to DROP. Two hosts do not care; in a ring of more, a host passes packets on."""
    dropping = sorted(name for name, facts in firewalls.items() if facts.get("forward") == "DROP")
    if len(hosts) < 3 or not dropping:
        return []
    return [
        Finding(
            "FABRIC.FORWARD_DROPPED",
            INFO,
            ", ".join(dropping),
            "Packets that these hosts would pass on are dropped (policy of iptables' FORWARD, which Docker sets). With a switch "
            "that is fine; in a ring, hosts that are not neighbours do not reach each other.",
            "In a ring: accept the fabric's subnets in chain DOCKER-USER, and set net.ipv4.ip_forward=1.",
        )
    ]


def _unknown_to_our_firewall(caller: str, called: str, lets_in: Sequence[str]) -> Finding:
    return Finding(
        "FABRIC.OWN_FIREWALL",
        INFO,
        called,
        f"The firewall of the deployment that is on {called} does not know {caller} and does not let it in, so the way between them "
        "is not proven. A deployment lets it in, and proves the way then.",
        evidence=f"it lets in {', '.join(lets_in)}",
    )


def _blocked(caller: str, called: str, ports: list[int], silent: list[int], firewalls: Results) -> Finding:
    rules = list(firewalls.get(called, {}).get("blocking") or [])
    filters = f" What filters there: {'; '.join(rules)}." if rules else ""
    how = "got no answer" if silent else "were refused"
    return Finding(
        "FABRIC.PORT_BLOCKED",
        ERROR,
        called,
        f"Connections from {caller} to TCP port {', '.join(map(str, ports))} of {called} {how}: a packet filter stands between them."
        + filters,
        f"Let the fabric's subnets in on {called} (with ufw: sudo ufw allow in on INTERFACE from SUBNET). Gloo, NCCL and Ray also "
        "use ports that the kernel picks: allow all TCP ports between the hosts.",
        "; ".join(rules),
    )


def _unproven(caller: str, called: str, ports: list[int]) -> Finding:
    return Finding(
        "FABRIC.PORT_UNPROVEN",
        WARNING,
        called,
        f"{caller} was refused at TCP port {', '.join(map(str, ports))} of {called}, which may not have listened at that moment: "
        "whether the way is open is not known.",
        "Run the check again with a fork for each host (--forks); if it stays, look for a firewall that rejects.",
    )
