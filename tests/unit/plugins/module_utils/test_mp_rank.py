# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ranks without Ray, as programs of three hosts with loopback addresses of their own and sleep as the rank."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _mp_rank
from ansible_collections.dgxspark.serving.plugins.module_utils._host_program import program

HEAD, FIRST, SECOND = "127.0.0.1", "127.0.0.2", "127.0.0.3"
# Two cores of a busy machine start a few Pythons.
SOON_SECONDS = 20

# docker stop: ends what the stand-in of docker run has started.
_DOCKER = """#!/bin/sh
echo "$2 $3 $4" >> stopped
kill "$(cat rank)"
"""


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + SOON_SECONDS
    while not what():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


class Host:
    """The program of one host. started: whether its rank runs or ran."""

    def __init__(self, folder: Path, pyz: Path, arguments: list[str]) -> None:
        self.folder = folder
        self.command = [sys.executable, "-I", str(pyz), *arguments, "--container", "rank", "--stop-seconds", "7"]
        self.command += ["--", "sh", "-c", "echo $$ > rank; exec sleep 60"]
        folder.mkdir()
        (folder / "docker").write_text(_DOCKER, encoding="utf-8")
        (folder / "docker").chmod(0o755)
        self.start()

    def start(self) -> None:
        (self.folder / "rank").unlink(missing_ok=True)
        self.log = (self.folder / "log").open("w")
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        self.process = subprocess.Popen(self.command, cwd=self.folder, env=environment, stderr=self.log)

    @property
    def started(self) -> bool:
        return (self.folder / "rank").exists()

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    @property
    def rank(self) -> int:
        wait_for(lambda: self.started and (self.folder / "rank").read_text().strip())
        return int((self.folder / "rank").read_text())

    def ends_with(self) -> int:
        return self.process.wait(SOON_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.folder / "rank").read_text()), signal.SIGKILL)
        self.log.close()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    pyz = tmp_path / "mp-rank.pyz"
    pyz.write_bytes(program(_mp_rank))
    with socket.create_server((HEAD, 0)) as server:
        place = f"{HEAD}:{server.getsockname()[1]}"
    made: list[Host] = []

    def make(address: str) -> Host:
        roles = {HEAD: ["--gather", place, "--rank", FIRST, "--rank", SECOND]}
        made.append(Host(tmp_path / address, pyz, roles.get(address, ["--join", place, "--own", address])))
        return made[-1]

    yield make
    for host in made:
        host.close()


def test_nobody_starts_before_all_are_there_in_any_order(hosts):
    first, head = hosts(FIRST), hosts(HEAD)
    wait_for(lambda: f"waiting for the host(s) at {SECOND}" in head.said)
    assert not head.started and not first.started
    second = hosts(SECOND)
    assert head.rank and first.rank and second.rank
    assert "all 3 hosts are there" in head.said


def test_a_worker_that_ends_ends_all_and_all_come_back(hosts):
    every = [hosts(HEAD), hosts(FIRST), hosts(SECOND)]
    ranks = [host.rank for host in every]
    os.kill(ranks[1], signal.SIGKILL)
    assert [host.ends_with() for host in every] == [_mp_rank.PEER_GONE, 137, _mp_rank.PEER_GONE]
    assert f"the rank at {FIRST} has ended" in every[0].said and "the head at 127.0.0.1 has ended" in every[2].said
    assert (every[0].folder / "stopped").read_text() == "--time 7 rank\n"
    # Not that of the one that had ended by itself.
    assert not (every[1].folder / "stopped").exists()
    for host in every:
        host.start()
    assert all(host.rank not in ranks for host in every)


def test_workers_do_not_stay_when_the_head_is_killed(hosts):
    head, first, second = hosts(HEAD), hosts(FIRST), hosts(SECOND)
    assert head.rank and first.rank and second.rank
    head.process.kill()
    assert (first.ends_with(), second.ends_with()) == (_mp_rank.PEER_GONE, _mp_rank.PEER_GONE)


def test_a_worker_that_is_started_again_while_all_wait_is_taken_anew(hosts):
    head = hosts(HEAD)
    wait_for(lambda: f"at {FIRST}, {SECOND}\n" in head.said)
    first = hosts(FIRST)
    wait_for(lambda: f"at {SECOND}\n" in head.said.rpartition(f"{FIRST}, ")[2].partition("\n")[2])
    first.process.kill()
    # Said again, after it was gone.
    wait_for(lambda: head.said.count(f"at {FIRST}, {SECOND}\n") == 2)
    first.start()
    second = hosts(SECOND)
    assert head.rank and first.rank and second.rank


def test_strangers_may_not_join(hosts):
    head = hosts(HEAD)
    stranger = hosts("127.0.0.9")
    wait_for(lambda: "127.0.0.9 is no host of the deployment" in head.said)
    assert not stranger.started and not head.started


def test_a_look_whether_the_port_answers_is_no_rank(hosts):
    """The preflight of a second run connects from every host to every port."""
    every = [hosts(HEAD), hosts(FIRST), hosts(SECOND)]
    ranks = [host.rank for host in every]
    address, _colon, port = every[0].command[4].rpartition(":")
    for source in (FIRST, SECOND, HEAD):
        socket.create_connection((address, int(port)), 5, (source, 0)).close()
    # One that stays and says nothing, and one that says something else.
    with (
        socket.create_connection((address, int(port)), 5, (FIRST, 0)),
        socket.create_connection((address, int(port)), 5, (FIRST, 0)) as other,
    ):
        other.sendall(b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(2 * _mp_rank.LOOK_EVERY_SECONDS)
    assert [host.rank for host in every] == ranks and all(host.process.poll() is None for host in every)


def test_the_exit_status_is_that_of_the_rank(hosts):
    every = [hosts(HEAD), hosts(FIRST), hosts(SECOND)]
    assert all(host.rank for host in every)
    os.kill(every[0].rank, signal.SIGTERM)
    assert every[0].ends_with() == 143


def test_a_rank_that_could_not_be_stopped_yet_is_stopped_a_little_later(tmp_path):
    """A container that is only being made cannot be stopped."""

    class OtherIsGone(_mp_rank.Worker):
        def gather(self):
            pass

        def check(self, seconds):
            raise _mp_rank.PeerGone("the head has ended")

    pid, tries = tmp_path / "pid", tmp_path / "tries"
    rank = ["sh", "-c", f"echo $$ > {pid}; exec sleep 60"]
    end = ["sh", "-c", f'echo >>{tries}; [ "$(wc -l <{tries})" -lt 2 ] || kill "$(cat {pid})"']
    assert _mp_rank.run_rank(OtherIsGone((HEAD, 1), FIRST), rank, end, lambda _line: None) == _mp_rank.PEER_GONE
    assert tries.read_text().count("\n") == 2


def test_a_port_that_is_taken_is_an_error_at_once():
    with socket.create_server((HEAD, 0)) as server, pytest.raises(OSError):
        _mp_rank.Head.at((HEAD, server.getsockname()[1]), [FIRST])
