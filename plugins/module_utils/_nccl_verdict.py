# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the logs of NCCL prove, and why a connection failed.

PRIVATE to this collection.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._fabric_verdict import network_of
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._nccl_env import (
    Selector,
    experimental,
    gid_index_pinned,
    hca_matches_nothing,
    socket_interface_invalid,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._nccl_log import IB, SOCKET, UNKNOWN, Failure, RankLog
from ansible_collections.dgxspark.serving.plugins.module_utils._rdma_sysfs import Device, Fabric

_EXPERIMENTAL = ("NCCL_IB_USE_INLINE", "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS")
# ENODATA and ETIMEDOUT as ibv_modify_qp returns them.
_NO_GID, _TIMED_OUT = "61", "110"
# IBV_WC_RETRY_EXC_ERR (rdma-core, libibverbs/verbs.h).
_RETRY_EXCEEDED = "12"
# The prefix that is assumed for GIDs of a host of which nothing else is known: what set-up guides for Sparks use.
_USUAL_PREFIX = 24


@dataclass(frozen=True)
class Surroundings:
    """What is known beside the logs. empty_gid_index: the planned environment sets NCCL_IB_GID_INDEX to nothing."""

    fabric: Fabric
    rails: list[Device]
    expect_rails: int | None = None
    empty_gid_index: bool = False
    broken_cma: bool = False


def overall_verdict(ranks: list[RankLog]) -> str:
    """ib only if every rank proves it; socket as soon as one rank does not use RDMA."""
    verdicts = {rank.verdict for rank in ranks}
    if SOCKET in verdicts:
        return SOCKET
    return IB if verdicts == {IB} else UNKNOWN


def transport_result(ranks: list[RankLog]) -> dict[str, Any]:
    """The C(transport) of the modules that read logs of NCCL."""
    channels: Counter[str] = Counter()
    for rank in ranks:
        channels.update(rank.channels)
    return {
        "verdict": overall_verdict(ranks),
        "plugin": next((rank.plugin for rank in ranks if rank.plugin), ""),
        "nccl_version": next((rank.nccl_version for rank in ranks if rank.nccl_version), ""),
        "devices": sorted({name for rank in ranks for name in rank.devices}, key=str.casefold),
        "channels": dict(channels),
        "ranks": [
            {
                "host": rank.host,
                "pid": rank.pid,
                "rank": rank.rank,
                "nranks": rank.nranks,
                "verdict": rank.verdict,
                "plugin": rank.plugin,
                "nccl_version": rank.nccl_version,
                "devices": rank.devices,
                "channels": dict(rank.channels),
            }
            for rank in ranks
        ],
    }


def judge_logs(ranks: list[RankLog], around: Surroundings) -> list[Finding]:
    findings = []
    for rank in ranks:
        findings += _judge_rank(rank, around)
    versions = sorted({rank.nccl_version for rank in ranks if rank.nccl_version})
    if len(versions) > 1:
        findings.append(
            Finding(
                "NCCL.VERSION_MISMATCH",
                ERROR,
                "ranks",
                f"The ranks use different versions of NCCL: {', '.join(versions)}.",
                "Use the same image on all hosts.",
            )
        )
    expected = max((rank.nranks or 0 for rank in ranks), default=0)
    seen = {rank.rank for rank in ranks if rank.rank is not None}
    if expected > len(seen) > 0:
        findings.append(
            Finding(
                "NCCL.RANKS_MISSING",
                INFO,
                "ranks",
                f"The logs are of {len(seen)} of {expected} ranks: the others are not judged.",
            )
        )
    # The same is often said by several ranks.
    return list(dict.fromkeys(findings))


def _name(rank: RankLog) -> str:
    if not rank.host:
        return "log"
    return f"rank {rank.rank} on {rank.host}" if rank.rank is not None else f"{rank.host} pid {rank.pid}"


def _judge_rank(rank: RankLog, around: Surroundings) -> list[Finding]:
    findings = [_judge_failure(rank, failure, around) for failure in rank.failures]
    index = rank.settings.get("NCCL_IB_GID_INDEX", "")
    if index.isdigit() and not any(finding.id == "NCCL.GID_INVALID" for finding in findings):
        findings.append(gid_index_pinned(index))
    for name in _EXPERIMENTAL:
        if rank.settings.get(name, "0") != "0":
            findings.append(experimental(name, rank.settings[name]))
    if rank.verdict == SOCKET:
        findings.append(_why_socket(rank, around))
    elif rank.verdict == UNKNOWN and not rank.failures:
        findings.append(_no_evidence(rank))
    elif rank.verdict == IB:
        findings += _unused_rails(rank, around)
    return findings


def nothing_said() -> Finding:
    """For logs in which NCCL does not speak at all."""
    return _no_evidence(RankLog("", 0))


def _no_evidence(rank: RankLog) -> Finding:
    if rank.plugin:
        message = f"NCCL has selected {rank.plugin}, but the log shows no connection to another host yet: this proves nothing."
        remedy = "Look again after the first all-reduce between hosts."
    else:
        message = "The log says nothing about the transport: RDMA and a silent fallback to TCP look the same in it."
        remedy = (
            "Start with NCCL_DEBUG=INFO, or compare the port counters of the RDMA devices before and after a request."
        )
    return Finding("NCCL.NO_EVIDENCE", WARNING, _name(rank), message, remedy)


def _why_socket(rank: RankLog, around: Surroundings) -> Finding:
    hca = rank.settings.get("NCCL_IB_HCA", "")
    fabric = around.fabric
    selector = Selector.parse(hca)
    if (
        hca
        and fabric.devices
        and not any(dev.active and selector.selects(dev.name, dev.port) for dev in fabric.devices)
    ):
        return hca_matches_nothing(hca, fabric)
    evidence = "Using network Socket"
    if rank.no_device:
        return Finding(
            "NCCL.NO_DEVICE_IN_CONTAINER",
            ERROR,
            _name(rank),
            "NCCL found no RDMA device and fell back to TCP without an error"
            + (", although this host has usable rails: the container cannot see them." if around.rails else "."),
            "Start the container on every host with --device /dev/infiniband, --cap-add IPC_LOCK and --ulimit memlock=-1. "
            "The network of the host alone does not bring the devices.",
            f"NET/IB : No device found; {evidence}",
        )
    return Finding(
        "NCCL.SOCKET_USED",
        ERROR,
        _name(rank),
        "Data between hosts goes over TCP, not over RDMA.",
        "Look for NCCL_NET=Socket or NCCL_IB_DISABLE=1 in the environment of the container.",
        evidence,
    )


def _unused_rails(rank: RankLog, around: Surroundings) -> list[Finding]:
    used = set(rank.devices)
    if not used:
        return []
    expected = around.expect_rails
    if expected is not None and len(used) < expected:
        return [
            Finding(
                "NCCL.RAIL_UNUSED",
                ERROR,
                _name(rank),
                f"NCCL uses {', '.join(sorted(used))}; {expected} rails are planned.",
                "Give each interface of the rails an address in a subnet of its own and name all devices in NCCL_IB_HCA.",
            )
        ]
    missing = []
    for name in sorted(used):
        device = around.fabric.device(name)
        twin = around.fabric.twin(device) if device else None
        if twin and twin.active and twin.name not in used:
            missing.append((name, twin))
    return [
        Finding(
            "NCCL.RAIL_UNUSED",
            WARNING,
            _name(rank),
            f"RDMA is used, but only {name}: {twin.name} is the other half of the same port and is not used, about half of "
            "the link's bandwidth.",
            (f"Give {twin.netdev} an address in a subnet of its own and add" if not twin.usable else "Add")
            + f" {twin.name} to NCCL_IB_HCA.",
        )
        for name, twin in missing
    ]


def _judge_failure(rank: RankLog, failure: Failure, around: Surroundings) -> Finding:
    return {
        "modify_qp": _connection_failed,
        "completion": _transfer_failed,
        "registration": _registration_failed,
        "no_net_plugin": _no_net_plugin,
        "no_interface": _no_interface,
    }[failure.kind](rank, failure, around)


def _connection_failed(rank: RankLog, failure: Failure, around: Surroundings) -> Finding:
    details = failure.details
    local, remote = details.get("local", ""), details.get("remote", "")
    device = details.get("device", "")
    if details.get("errno") == _NO_GID or local == "::":
        return _gid_invalid(failure, around)
    if local.startswith("fe80"):
        reason = (
            "NCCL_IB_GID_INDEX is set to an empty string, which NCCL reads as 0. " if around.empty_gid_index else ""
        )
        return Finding(
            "NCCL.GID_LINK_LOCAL",
            ERROR,
            device,
            f"{reason}The connection was tried from GID index {details['index']}, a link-local address ({local}), which does "
            "not reach another host.",
            "Remove NCCL_IB_GID_INDEX from the environment (absent, not empty), and give the interface an IPv4 address. "
            "The hints of NCCL about cross-rail connections do not apply.",
            failure.line,
        )
    network = _common_network(local, remote, device, around)
    if network:
        return Finding(
            "NCCL.CROSS_CABLE",
            ERROR,
            device,
            f"NCCL paired two ports that are not on the same cable: {_plain(local)} ({network}) and {_plain(remote)}.",
            "Cable the same ports of both hosts with each other. In a ring of three hosts or more set "
            "NCCL_IB_SUBNET_AWARE_ROUTING=1 (NCCL after 2.30.5), NCCL_IB_MERGE_NICS=0 and NCCL_CROSS_NIC=1.",
            failure.line,
        )
    where = f"device {device}, local GID {_plain(local)}, remote GID {_plain(remote)}" if device else ""
    return Finding(
        "NCCL.CONNECT_FAILED",
        ERROR,
        _name(rank),
        "RDMA was selected, but the connection to the other rank failed: "
        f"{details['words'].strip()}{f' ({where})' if where else ''}. RDMA does not work between these hosts.",
        "Check that the other end answers over this rail (peers)."
        if device
        else "This version of NCCL names neither device nor GID: check the rails of both hosts, or use a newer NCCL.",
        failure.line,
    )


def _gid_invalid(failure: Failure, around: Surroundings) -> Finding:
    name = failure.details.get("device", "")
    device = around.fabric.device(name)
    found = f" The valid entry there is {device.gid.index}." if device and device.gid else ""
    return Finding(
        "NCCL.GID_INVALID",
        ERROR,
        name or "NCCL_IB_GID_INDEX",
        f"GID index {failure.details.get('index', '?')} of {name or 'the device'} is empty.{found}",
        "Remove NCCL_IB_GID_INDEX: NCCL then picks a valid entry for each device. Entries move when interfaces do, so another "
        "number is no remedy.",
        failure.line,
    )


def _plain(gid: str) -> str:
    return gid.removeprefix("::ffff:")


def _common_network(local: str, remote: str, device: str, around: Surroundings) -> ipaddress.IPv4Network | None:
    """The network of the local address if the remote one is not in it."""
    try:
        first, second = ipaddress.IPv4Address(_plain(local)), ipaddress.IPv4Address(_plain(remote))
    except ValueError:
        return None
    rail = around.fabric.device(device)
    network = network_of(rail) if rail and rail.ipv4 == str(first) else None
    if network is None:
        network = ipaddress.IPv4Network(f"{first}/{_USUAL_PREFIX}", strict=False)
    return None if second in network else network


def _transfer_failed(rank: RankLog, failure: Failure, around: Surroundings) -> Finding:
    details = failure.details
    device = around.fabric.device(details.get("device", ""))
    name = details.get("device") or _name(rank)
    if details.get("number") != _RETRY_EXCEEDED:
        status = details.get("name", f"status {details.get('number')}")
        return Finding(
            "NCCL.TRANSFER_FAILED",
            ERROR,
            name,
            f"A transfer to {details.get('peer')} failed: {status}.",
            "",
            failure.line,
        )
    mtu = f" {device.netdev} has MTU {device.mtu} here." if device and device.mtu else ""
    return Finding(
        "NCCL.RETRY_EXCEEDED",
        ERROR,
        name,
        f"The connection to {details.get('peer')} was made, then packets got no answer (IBV_WC_RETRY_EXC_ERR).{mtu} The usual "
        "reason is a different MTU at the other end: small messages pass, large ones do not.",
        "Compare the MTU at both ends of this rail (peers tells), set it with netplan, and check again after firmware updates.",
        failure.line,
    )


def _registration_failed(rank: RankLog, failure: Failure, around: Surroundings) -> Finding:
    if around.broken_cma:
        return Finding(
            "NCCL.REGISTRATION_FAILED",
            ERROR,
            _name(rank),
            "NCCL could not register memory, because the kernel's account of contiguous memory is broken (CmaFree > CmaTotal). "
            "The limit of locked memory is not the reason.",
            "Boot with kho=off on the kernel's command line, or boot a 6.17 kernel.",
            failure.line,
        )
    return Finding(
        "NCCL.REGISTRATION_FAILED",
        ERROR,
        _name(rank),
        "NCCL could not register memory with the RDMA device.",
        "Raise the limit of locked memory of the container (--ulimit memlock=-1) and add --cap-add IPC_LOCK. If ulimit -l says "
        "unlimited in it already, look at CmaTotal and CmaFree in /proc/meminfo.",
        failure.line,
    )


def _no_net_plugin(rank: RankLog, failure: Failure, around: Surroundings) -> Finding:
    host = (
        "This host has usable rails: the container cannot see them."
        if around.rails
        else "This host has no usable rail."
    )
    return Finding(
        "NCCL.NO_NET_PLUGIN",
        ERROR,
        _name(rank),
        "RDMA was forced (NCCL_NET=IB) and NCCL found no RDMA device. It calls that 'invalid usage'; no argument is wrong. "
        + host,
        "Start the container with --device /dev/infiniband, --cap-add IPC_LOCK and --ulimit memlock=-1.",
        failure.line,
    )


def _no_interface(rank: RankLog, failure: Failure, around: Surroundings) -> Finding:
    invalid = socket_interface_invalid(rank.settings.get("NCCL_SOCKET_IFNAME", ""), around.fabric)
    return Finding(invalid.id, invalid.severity, _name(rank), invalid.message, invalid.remedy, failure.line)
