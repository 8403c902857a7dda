# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether TCP connections between the hosts come through, tried with real ones, and how far the clocks are apart.

PRIVATE to this collection. All hosts run it at the same time: each answers on its ports and knocks at those of the others.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

# Ansible starts a task on all hosts within about a second; a host that goes through a jump host is later.
PROBE_SECONDS = 4.0
# The round trip of a fabric is below a millisecond. Without an answer in this time the packet was dropped.
KNOCK_SECONDS = 1.0
_PAUSE_SECONDS = 0.1
_KNOCKS_AT_ONCE = 32

OPEN, NO_ANSWER, REFUSED, UNREACHABLE = "open", "no_answer", "refused", "unreachable"


@dataclass(frozen=True)
class Probe:
    """C(address), C(ports): where this host answers; C(peers): address of another host to its ports."""

    address: str
    ports: Sequence[int]
    peers: Mapping[str, Sequence[int]]
    seconds: float = PROBE_SECONDS


@dataclass
class _Knock:
    peer: str
    port: int
    outcome: str = NO_ANSWER
    clock_offset: float | None = None


@dataclass
class _Answerer:
    """Accepts on all ports and tells each caller the time."""

    probe: Probe
    listening: dict[int, socket.socket] = field(default_factory=dict)
    heard: set[tuple[str, int]] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        for port in self.probe.ports:
            server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((self.probe.address, port))
                server.listen()
            except OSError:
                # Somebody listens there already: that one answers. Or the address is not there: nobody does.
                server.close()
                continue
            server.setblocking(False)
            self.listening[port] = server

    def close(self) -> None:
        for server in self.listening.values():
            server.close()

    def serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            for port, server in self.listening.items():
                selector.register(server, selectors.EVENT_READ, port)
            while not self.over.is_set():
                for key, _events in selector.select(_PAUSE_SECONDS):
                    with contextlib.suppress(OSError):
                        self._answer(self.listening[key.data], key.data)

    def _answer(self, server: socket.socket, port: int) -> None:
        connection, caller = server.accept()
        with connection:
            connection.settimeout(KNOCK_SECONDS)
            connection.sendall(f"{time.time()!r}\n".encode())
            self.heard.add((caller[0], port))
            # The caller closes first, so that no waiting connection stays on a port that Ray will want.
            connection.recv(1)

    def heard_everybody(self) -> bool:
        return all((peer, port) in self.heard for peer in self.probe.peers for port in self.listening)


def _knock(knock: _Knock, source: str, deadline: float) -> _Knock:
    """Try until it is open or the time is over; the last outcome counts."""
    while True:
        began = time.time()
        try:
            with socket.create_connection((knock.peer, knock.port), KNOCK_SECONDS, (source, 0)) as connection:
                knock.outcome = OPEN
                with contextlib.suppress(OSError, ValueError):
                    # An own service that listens there need not speak.
                    told = float(connection.recv(64).decode("ascii"))
                    knock.clock_offset = told - (began + time.time()) / 2
                return knock
        except TimeoutError:
            knock.outcome = NO_ANSWER
        except ConnectionRefusedError:
            knock.outcome = REFUSED
        except OSError as error:
            knock.outcome = NO_ANSWER if error.errno == errno.ETIMEDOUT else UNREACHABLE
        if time.monotonic() + _PAUSE_SECONDS > deadline:
            return knock
        time.sleep(_PAUSE_SECONDS)


def run_probe(probe: Probe) -> dict[str, Any]:
    """What came of it: C(connections), C(heard_from) (who reached this host), C(clock_offsets) (their clock minus ours)."""
    deadline = time.monotonic() + probe.seconds
    answerer = _Answerer(probe)
    answerer.open()
    thread = threading.Thread(target=answerer.serve, daemon=True)
    thread.start()
    knocks = [_Knock(peer, port) for peer, ports in probe.peers.items() for port in ports]
    try:
        with ThreadPoolExecutor(_KNOCKS_AT_ONCE) as pool:
            done = list(pool.map(lambda knock: _knock(knock, probe.address, deadline), knocks))
        while not answerer.heard_everybody() and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
    finally:
        answerer.over.set()
        thread.join(timeout=probe.seconds)
        answerer.close()
    offsets: dict[str, float] = {}
    for knock in done:
        if knock.clock_offset is not None and abs(knock.clock_offset) < abs(offsets.get(knock.peer, float("inf"))):
            offsets[knock.peer] = round(knock.clock_offset, 3)
    return {
        "address": probe.address,
        "connections": [{"peer": knock.peer, "port": knock.port, "outcome": knock.outcome} for knock in done],
        "heard_from": sorted({caller for caller, _port in answerer.heard}),
        "answering": sorted(answerer.listening),
        "clock_offsets": offsets,
    }
