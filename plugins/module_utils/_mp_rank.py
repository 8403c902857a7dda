# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keeps the ranks of a deployment without Ray together: main process of the engine's unit on every host.

vLLM's own multi-node mode notices a dead worker at the next request only, and its workers never notice a dead head: they stay, and
keep their memory. So the programs of all hosts hold on to each other by one TCP connection each, worker to head. The head starts
its rank when all workers have joined, and tells them to start theirs: hosts may boot in any order, and whoever waits holds no
memory. A connection that ends means that the other rank has ended: the own rank is ended, too, the program ends with it, and
systemd starts both again. A host without power is noticed by TCP's keepalive.

The place where they meet is bound to the fabric, and only the planned addresses may join.

PRIVATE to this collection. Standard library only, it is a host program.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PROGRAM = "dgxspark-mp-rank"
# A rank that was ended because another one had ended: "temporary failure" of sysexits.h.
PEER_GONE = 75

HELLO, START = b"dgxspark rank\n", b"start\n"
LOOK_EVERY_SECONDS = 1.0
# A host that is off does not answer at all, so a try may take this long; then a pause.
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 2.0
# A host that has lost its power or its cable is noticed after 10 + 4 x 5 s. A cable that is put back within that time is no loss.
KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))

Say = Callable[[str], None]


class PeerGone(Exception):
    """Another rank has ended, or its host; the message says which."""


def _say(line: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {line}\n")
    sys.stderr.flush()


def _keep_alive(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _ended(connection: socket.socket) -> bool:
    """Whether a readable connection is at its end. Nothing that a peer says after the start means anything."""
    try:
        return not connection.recv(64)
    except OSError:
        return True


@dataclass
class Head:
    """The meeting place. workers: addresses of all other hosts; callers: who has connected and not said yet what it is."""

    listener: socket.socket
    workers: Sequence[str]
    say: Say = _say
    joined: dict[str, socket.socket] = field(default_factory=dict)
    callers: dict[socket.socket, str] = field(default_factory=dict)

    @classmethod
    def at(cls, place: tuple[str, int], workers: Sequence[str], say: Say = _say) -> Head:
        """Raises OSError, but waits for an address that is not up yet: at boot."""
        said = False
        while True:
            try:
                return cls(socket.create_server(place, backlog=16), workers, say)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
            if not said:
                say(f"waiting for this host's address {place[0]}")
                said = True
            time.sleep(RETRY_SECONDS)

    @property
    def missing(self) -> list[str]:
        return [address for address in self.workers if address not in self.joined]

    def look(self, seconds: float) -> list[str]:
        """Takes in who comes. Returns the addresses whose connection has ended, one that was replaced by a new one included."""
        with selectors.DefaultSelector() as selector:
            for connection in (self.listener, *self.callers, *self.joined.values()):
                selector.register(connection, selectors.EVENT_READ)
            ready = [key.fileobj for key, _events in selector.select(seconds)]
        lost = [address for address, connection in self.joined.items() if connection in ready and _ended(connection)]
        for address in lost:
            self.joined.pop(address).close()
        for caller in [caller for caller in self.callers if caller in ready]:
            lost += self._take_in(caller, self.callers.pop(caller))
        if self.listener in ready:
            # One that has given up between the call and the answer is none.
            with contextlib.suppress(ConnectionError):
                self._accept()
        return lost

    def _accept(self) -> None:
        connection, (address, *_port) = self.listener.accept()
        if address in self.workers:
            self.callers[_keep_alive(connection)] = address
            return
        self.say(f"{address} is no host of the deployment, it may not join")
        connection.close()

    def _take_in(self, caller: socket.socket, address: str) -> list[str]:
        """Who does not say what a rank says only looks whether the port answers, as the preflight does: that is no rank."""
        try:
            is_rank = caller.recv(len(HELLO)) == HELLO
        except OSError:
            is_rank = False
        if not is_rank:
            caller.close()
            return []
        before = self.joined.pop(address, None)
        self.joined[address] = caller
        if before is None:
            return []
        before.close()
        return [address]

    def gather(self) -> None:
        """Returns when all are there. There is no limit: a host may be off for the weekend, and systemd can end the wait."""
        said: list[str] | None = None
        while True:
            missing = self.missing
            if not missing:
                break
            if missing != said:
                self.say(f"waiting for the host(s) at {', '.join(missing)}")
                said = missing
            self.look(LOOK_EVERY_SECONDS)
        for address, connection in list(self.joined.items()):
            try:
                connection.sendall(START)
            except OSError as error:
                raise PeerGone(f"the rank at {address} has ended before the start: {error}") from error
        self.say(f"all {len(self.workers) + 1} hosts are there, the ranks start")

    def check(self, seconds: float) -> None:
        """Raises PeerGone."""
        lost = self.look(seconds)
        if lost:
            raise PeerGone(f"the rank at {', '.join(lost)} has ended")

    def close(self) -> None:
        for connection in (*self.callers, *self.joined.values(), self.listener):
            connection.close()


@dataclass
class Worker:
    """A connection to the head at C(place), from the address C(own)."""

    place: tuple[str, int]
    own: str
    say: Say = _say
    sleep: Callable[[float], None] = time.sleep
    connection: socket.socket | None = None

    def gather(self) -> None:
        """Returns when the head says that all are there."""
        self.say(f"waiting for the head at {self.place[0]}")
        while True:
            try:
                # TCP's own limit of unanswered tries would be minutes.
                connection = socket.create_connection(self.place, CONNECT_SECONDS, (self.own, 0))
            except OSError:
                self.sleep(RETRY_SECONDS)
                continue
            connection.settimeout(None)
            _keep_alive(connection)
            try:
                connection.sendall(HELLO)
                started = connection.recv(len(START))
            except OSError:
                started = b""
            if started:
                self.connection = connection
                self.say("all hosts are there, the rank starts")
                return
            connection.close()
            self.sleep(RETRY_SECONDS)

    def check(self, seconds: float) -> None:
        """Raises PeerGone."""
        if self.connection is None:
            raise PeerGone("the head has ended")
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            if selector.select(seconds) and _ended(self.connection):
                raise PeerGone(f"the head at {self.place[0]} has ended")

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


def run_rank(peers: Head | Worker, command: Sequence[str], end: Sequence[str], say: Say = _say) -> int:
    """Runs the command while all peers are there. Returns its exit status, or C(PEER_GONE) after C(end) has ended it."""
    peers.gather()
    # A program of the host: there is no AnsibleModule.
    child = subprocess.Popen(list(command))  # pylint: disable=ansible-bad-function
    try:
        while child.poll() is None:
            peers.check(LOOK_EVERY_SECONDS)
    except PeerGone as gone:
        say(f"{gone}: this rank is ended, and waits for the others when it is started again")
        # Again and again: a container that is only being made cannot be stopped yet.
        while child.poll() is None:
            # A program of the host: there is no AnsibleModule.
            subprocess.run(list(end), check=False, stdout=subprocess.DEVNULL)  # pylint: disable=ansible-bad-function
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(RETRY_SECONDS)
        return PEER_GONE
    finally:
        peers.close()
    # A status of -15 is signal 15, and 143 for a shell and for systemd.
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _place(text: str) -> tuple[str, int]:
    address, _colon, port = text.rpartition(":")
    return address, int(port)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(PROGRAM, description="Runs a rank while all ranks are there.")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--gather", type=_place, metavar="ADDRESS:PORT", help="this is the head: where the others join")
    group.add_argument("--join", type=_place, metavar="ADDRESS:PORT", help="this is a worker: where the head is")
    parser.add_argument("--rank", action="append", default=[], metavar="ADDRESS", help="another host, for the head")
    parser.add_argument("--own", default="", metavar="ADDRESS", help="this host's address, for a worker")
    parser.add_argument("--container", required=True, help="what to stop when another rank has ended")
    parser.add_argument("--stop-seconds", type=int, default=20)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(list(argv))
    end = ["docker", "stop", "--time", str(options.stop_seconds), options.container]
    peers = Head.at(options.gather, options.rank) if options.gather else Worker(options.join, options.own)
    return run_rank(peers, options.command, end)
