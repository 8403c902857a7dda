# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What NCCL says with NCCL_DEBUG=INFO, in the wordings of 2.19 to 2.30.

PRIVATE to this collection.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

IB, SOCKET, UNKNOWN = "ib", "socket", "unknown"

# host:pid:tid [gpu] NCCL INFO ..., and [time] host:pid:tid [gpu] file.cc:123 (function) NCCL WARN ...; Ray and vLLM put
# prefixes of their own before it.
_LINE = re.compile(
    r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[\d+\] (?:\S+:\d+ (?:\(\w+\) )?)?NCCL (?P<level>INFO|WARN|ERROR) (?P<text>.*)"
)
_VERSION = re.compile(r"\bNCCL version (\d+\.\d+\.\d+)")
_RANK = re.compile(r"ncclCommInitRank\w* comm \S+ rank (\d+) nranks (\d+)")
_NETWORK = re.compile(r"Using network (\S+)")
_DEVICES = re.compile(r"NET/IB : Using (?P<devices>(?:\[\d+\]\S+ ?)*).*?; OOB (?P<oob>[^:\s]+):")
_DEVICE = re.compile(r"\[\d+\](?P<name>[^:\s]+):(?P<port>\d+)/")
_CHANNEL = re.compile(
    r"Channel \d+/\d+ : (?P<from>\d+)\[\d+\] -> (?P<to>\d+)\[\d+\](?: \[(?P<way>send|receive)\])? via (?P<via>\S+)"
)
_SETTING = re.compile(r"(?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*?)\.?$")
_MODIFY_QP = re.compile(
    r"Call to ibv_modify_qp failed with (?:error )?(?:(?P<errno>\d+) )?(?P<words>[^,]*)"
    r"(?:, on dev (?P<device>[^:\s]+):\d+.*?local GID index (?P<index>\d+), local GID (?P<local>[^,\s]+), "
    r"remote GID (?P<remote>\S+))?"
)
_COMPLETION = re.compile(
    r"Got completion from peer (?P<peer>[^<\s]+)\S* with (?:status=(?P<name>\w+)\(|error )(?P<number>\d+)"
)
_COMPLETION_DEVICE = re.compile(r"\bhca (\S+)")
_NO_BOOTSTRAP = re.compile(r"Bootstrap ?: no socket interface found|with family \d+ is neither AF_INET")
_REGISTER = re.compile(r"Call to ibv_reg_mr\w* failed")


@dataclass(frozen=True)
class Failure:
    """kind: modify_qp, completion, registration, no_net_plugin or no_interface; details: what the line says; line: all of it."""

    kind: str
    line: str
    details: dict[str, str] = field(default_factory=dict)


@dataclass
class RankLog:
    """What one process has logged. plugin: as in "Using network IBext_v10"."""

    host: str
    pid: int
    rank: int | None = None
    nranks: int | None = None
    nccl_version: str = ""
    plugin: str = ""
    devices: list[str] = field(default_factory=list)
    oob_interface: str = ""
    no_device: bool = False
    connected: bool = False
    # What was said about channels, each once: the same lines often stand in several logs.
    said: set[tuple[str, str]] = field(default_factory=set)
    settings: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    @property
    def channels(self) -> Counter[str]:
        return Counter(sorted(via for _channel, via in self.said))

    @property
    def verdict(self) -> str:
        """Which transport carried data between hosts: proven by channels, not by what was loaded or selected."""
        networks = {_kind_of(via) for via in self.channels if via.startswith("NET/")}
        if SOCKET in networks or (not networks and _is_socket(self.plugin)):
            return SOCKET
        broken = any(failure.kind in ("modify_qp", "registration", "no_net_plugin") for failure in self.failures)
        if IB in networks and not broken:
            return IB
        if any(failure.kind == "completion" for failure in self.failures) and self.connected:
            return IB
        return UNKNOWN


def _is_socket(plugin: str) -> bool:
    return plugin.lower() == "socket"


def _kind_of(via: str) -> str:
    """NET/IB/0 and NET/IBext_v10/1/GDRDMA are RDMA, NET/Socket/0 is TCP; other plugins (AWS) are neither."""
    plugin = via.split("/")[1]
    if _is_socket(plugin):
        return SOCKET
    return IB if plugin.upper().startswith("IB") else UNKNOWN


def parse_logs(logs: Iterable[str]) -> list[RankLog]:
    """One entry per process that speaks NCCL in the logs, by rank; ranks that are not known last."""
    found: list[RankLog] = []
    for log in logs:
        found += _parse_log(log)
    merged: dict[tuple[str, int], RankLog] = {}
    for rank in found:
        known = merged.setdefault((rank.host, rank.pid), rank)
        if known is not rank:
            _merge(known, rank)
    return sorted(merged.values(), key=lambda rank: (rank.rank is None, rank.rank or 0, rank.host, rank.pid))


def _merge(known: RankLog, other: RankLog) -> None:
    """Two logs of one process: the engine's and Ray's copy of it."""
    known.rank = known.rank if known.rank is not None else other.rank
    known.nranks = known.nranks or other.nranks
    known.nccl_version = known.nccl_version or other.nccl_version
    known.plugin = known.plugin or other.plugin
    known.devices = known.devices or other.devices
    known.oob_interface = known.oob_interface or other.oob_interface
    known.no_device = known.no_device or other.no_device
    known.connected = known.connected or other.connected
    known.said |= other.said
    known.settings.update(other.settings)
    known.failures += [failure for failure in other.failures if failure not in known.failures]


def _parse_log(log: str) -> list[RankLog]:
    ranks: dict[tuple[str, int], RankLog] = {}
    version = ""
    last: RankLog | None = None
    for line in log.splitlines():
        found = _LINE.search(line)
        if not found:
            plain = _VERSION.search(line)
            version = version or (plain[1] if plain else "")
            if last and _NO_BOOTSTRAP.search(line):
                _add_failure(last, Failure("no_interface", line.strip()))
            continue
        key = (found["host"], int(found["pid"]))
        last = ranks.setdefault(key, RankLog(*key))
        _read_line(last, found["text"], line.strip())
    for rank in ranks.values():
        # Older versions print the version without a prefix, to standard output.
        rank.nccl_version = rank.nccl_version or version
    if not ranks and version:
        ranks["", 0] = RankLog("", 0, nccl_version=version)
    return list(ranks.values())


def _add_failure(rank: RankLog, failure: Failure) -> None:
    if failure.kind not in {known.kind for known in rank.failures} or failure.kind in ("modify_qp", "completion"):
        rank.failures.append(failure)


def _read_line(rank: RankLog, text: str, line: str) -> None:
    if version := _VERSION.search(text):
        rank.nccl_version = version[1]
    elif started := _RANK.search(text):
        rank.rank, rank.nranks = int(started[1]), int(started[2])
    elif network := _NETWORK.search(text):
        rank.plugin = network[1]
    elif devices := _DEVICES.search(text):
        rank.devices = [device["name"] for device in _DEVICE.finditer(devices["devices"])]
        rank.oob_interface = devices["oob"]
    elif channel := _CHANNEL.search(text):
        rank.said.add((channel[0], "/".join(channel["via"].split("/")[:3])))
        if rank.rank is None and channel["way"]:
            rank.rank = int(channel["from"] if channel["way"] == "send" else channel["to"])
    elif setting := _SETTING.match(text):
        rank.settings[setting["name"]] = setting["value"]
    elif text.startswith("NET/IB : No device found"):
        rank.no_device = True
    elif text.startswith(("Connected all rings", "Connected all trees")):
        rank.connected = True
    else:
        _read_failure(rank, text, line)


def _read_failure(rank: RankLog, text: str, line: str) -> None:
    if pair := _MODIFY_QP.search(text):
        _add_failure(rank, Failure("modify_qp", line, {key: value for key, value in pair.groupdict().items() if value}))
    elif completion := _COMPLETION.search(text):
        details = {key: value for key, value in completion.groupdict().items() if value}
        device = _COMPLETION_DEVICE.search(text)
        _add_failure(rank, Failure("completion", line, {**details, "device": device[1] if device else ""}))
    elif _REGISTER.search(text):
        _add_failure(rank, Failure("registration", line))
    elif "Failed to initialize any NET plugin" in text:
        _add_failure(rank, Failure("no_net_plugin", line))
    elif _NO_BOOTSTRAP.search(text):
        _add_failure(rank, Failure("no_interface", line))
