# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who listens on a TCP port of this host, read from C(/proc).

PRIVATE to this collection.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import running_pids

# State of a listening socket in /proc/net/tcp (include/net/tcp_states.h).
_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """address: as text; pid: 0 when the socket's process is not visible to this user."""

    port: int
    address: str
    inode: str
    pid: int = 0


def _address(text: str) -> str:
    raw = bytes.fromhex(text)
    # The kernel prints each 32 bit word in the byte order of the host; all hosts of this collection are little-endian.
    words = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    return socket.inet_ntop(socket.AF_INET6 if len(words) == 16 else socket.AF_INET, words)


def parse_listeners(text: str) -> list[Listener]:
    """Listening sockets of the text of C(/proc/net/tcp) or C(/proc/net/tcp6)."""
    found = []
    for line in text.splitlines()[1:]:
        columns = line.split()
        if len(columns) > 9 and columns[3] == _LISTEN:
            address, port = columns[1].split(":")
            found.append(Listener(int(port, 16), _address(address), columns[9]))
    return found


def _socket_owners(inodes: set[str], proc_root: str) -> dict[str, int]:
    owners: dict[str, int] = {}
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in running_pids(proc_root):
        folder = f"{proc_root}/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            with contextlib.suppress(OSError):
                inode = wanted.get(os.readlink(f"{folder}/{name}"))
                if inode:
                    owners.setdefault(inode, pid)
    return owners


def all_listeners(proc_root: str = "/proc") -> list[Listener]:
    """Every listening socket, one per port and process."""
    return _with_owners(_sockets(proc_root), proc_root)


def listeners(ports: Collection[int], proc_root: str = "/proc") -> list[Listener]:
    """Listening sockets on one of C(ports), one per port and process."""
    return _with_owners([entry for entry in _sockets(proc_root) if entry.port in ports], proc_root)


def _sockets(proc_root: str) -> list[Listener]:
    found = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"{proc_root}/net/{name}", encoding="ascii") as handle:
            found += parse_listeners(handle.read())
    return found


def _with_owners(sockets: Sequence[Listener], proc_root: str) -> list[Listener]:
    owners = _socket_owners({entry.inode for entry in sockets}, proc_root) if sockets else {}
    unique = {(entry.port, owners.get(entry.inode, 0)): entry for entry in reversed(sockets)}
    return [
        Listener(entry.port, entry.address, entry.inode, pid)
        for (_port, pid), entry in sorted(unique.items(), key=lambda item: item[0])
    ]
