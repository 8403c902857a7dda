# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whom the firewall of the deployment would lock out of this host: the way in of this run, and what the user keeps.

PRIVATE to this collection. The closed ranges are wide (ports that the kernel picks), so somebody's service may well be in them.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import is_within
from ansible_collections.dgxspark.serving.plugins.module_utils._host_kernel import read_text
from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import process_owner

# A module is a few processes below the SSH session: shells, sudo, Python.
_MOST_ANCESTORS = 32


def ssh_port(proc_root: str = "/proc", pid: int | None = None) -> int:
    """The port of this host by which SSH brought this process here, 0 where none did or it may not be seen.

    sudo takes SSH_CONNECTION ("client port server port", sshd(8)) away, so it is looked for in the processes above.
    """
    current = os.getpid() if pid is None else pid
    for _generation in range(_MOST_ANCESTORS):
        owner = process_owner(current, proc_root) if current else None
        if owner is None:
            break
        for entry in read_text(f"{proc_root}/{current}/environ").split("\0"):
            name, _equals, value = entry.partition("=")
            port = value.rpartition(" ")[2]
            if name == "SSH_CONNECTION" and port.isdigit():
                return int(port)
        current = owner.parent_pid
    return 0


def judge_ssh(subject: str, port: int, closed: Iterable[tuple[int, int]]) -> list[Finding]:
    if not port or not is_within(port, closed):
        return []
    return [
        Finding(
            "HOST.SSH_PORT_CLOSED",
            ERROR,
            subject,
            f"SSH comes in by port {port}, which the firewall of the deployment would close to new connections.",
            f"Set ansible_port: {port} for this host, or spark_open_ports: [{port}].",
        )
    ]


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def judge_kept(subject: str, listening: Iterable[Mapping[str, Any]], kept: Sequence[str]) -> list[Finding]:
    """listening: rows of the survey, of ports that will be closed; kept: as a teardown names what it keeps."""
    found: dict[int, str] = {}
    for row in listening:
        names = {f"unit {row['systemd_unit']}", f"container {row['container']}"} & set(kept)
        if names and not _is_loopback(str(row["address"])):
            found[int(row["port"])] = min(names)
    return [
        Finding(
            "HOST.KEPT_PORT_CLOSED",
            WARNING,
            subject,
            f"Port {port} of {name}, which is kept, will answer to the hosts of the deployment only: it is one of those that Ray and the "
            "engine may take.",
            f"Set spark_open_ports: [{port}] if others use it.",
        )
        for port, name in sorted(found.items())
    ]
