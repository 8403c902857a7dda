# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The canary with a local server for the API and a script for systemctl."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _canary as canary
from ansible_collections.dgxspark.serving.plugins.module_utils._host_program import program

KEY = "k3y-of-the-api"
NOW = 1_800_000_000.0
LONG_AGO = canary.UnitTimes("active", NOW - 100_000)
POLICY = canary.Policy()


class FakeApi(http.server.ThreadingHTTPServer):
    """mode: ok, hang (health says 200 and no answer comes), busy (hangs, and counts tokens), error or refuse."""

    daemon_threads = True

    def __init__(self) -> None:
        self.mode = "ok"
        self.tokens = 0
        self.asked: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FakeApi

    def log_message(self, *_arguments: object) -> None:
        pass

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.server.tokens += 5 if self.server.mode == "busy" else 0
            self._answer(200, f'# HELP\nvllm:generation_tokens_total{{model_name="m"}} {self.server.tokens}.0\n')
        else:
            self._answer(200, "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
        mode = self.server.mode
        if mode in ("hang", "busy"):
            time.sleep(3)
        elif mode == "error":
            self._answer(500, '{"error": "EngineCore encountered an issue"}')
        elif self.headers.get("Authorization") != f"Bearer {KEY}":
            self._answer(401, "{}")
        else:
            self._answer(200, '{"choices": [{"text": "2"}]}')


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def ask(api: FakeApi, key: str = KEY) -> canary.Answer:
    return canary.Api(api.url, "qwen35", key, timeout=0.3).one_token()


def test_one_token_with_the_key(api):
    assert ask(api).kind == canary.OK
    (asked,) = api.asked
    assert (asked["path"], asked["key"], asked["model"], asked["max_tokens"]) == (
        "/v1/completions",
        f"Bearer {KEY}",
        "qwen35",
        1,
    )


def test_a_dead_rank_is_noticed_though_health_is_200(api):
    api.mode = "hang"
    answer = ask(api)
    assert answer.kind == canary.FAILING and "although /health says 200" in answer.reason


def test_a_full_queue_is_no_failure(api):
    api.mode = "busy"
    assert ask(api).kind == canary.BUSY


def test_other_answers(api):
    assert ask(api, key="wrong").kind == canary.REFUSED
    api.mode = "error"
    assert ask(api).kind == canary.FAILING
    assert canary.Api("http://127.0.0.1:1", "m", KEY).one_token().kind == canary.FAILING


# The policy

FAILED, FINE = canary.Answer(canary.FAILING, "no answer"), canary.Answer(canary.OK, "", 0.2)


def after(
    *looks: tuple[canary.Answer, canary.UnitTimes, float], state: canary.State | None = None
) -> list[canary.State]:
    states = []
    known = state or canary.State()
    for answer, unit, when in looks:
        known = canary.decide(known, answer, unit, POLICY, when)
        states.append(known)
    return states


def test_it_restarts_once_and_then_gives_up():
    restarted = canary.UnitTimes("active", NOW + 121)
    late = NOW + 121 + canary.START_SECONDS
    states = after(
        (FINE, LONG_AGO, NOW),
        (FAILED, LONG_AGO, NOW + 60),
        (FAILED, LONG_AGO, NOW + 120),
        (FAILED, restarted, NOW + 180),
        (FAILED, restarted, late + 60),
        (FAILED, restarted, late + 120),
        (FAILED, restarted, late + 180),
        (FINE, restarted, late + 240),
    )
    assert [state.state for state in states] == [
        "ok",
        "failing",
        "restarted",
        "starting",
        "failing",
        "gave_up",
        "gave_up",
        "ok",
    ]
    assert states[5].since == states[6].since == states[5].gave_up


def test_a_failure_in_between_is_forgiven():
    states = after((FAILED, LONG_AGO, NOW), (FINE, LONG_AGO, NOW + 60), (FAILED, LONG_AGO, NOW + 120))
    assert [state.state for state in states] == ["failing", "ok", "failing"]


def test_an_engine_that_starts_is_left_alone_until_it_has_answered_once():
    young = canary.UnitTimes("active", NOW - 60)
    states = after(
        (FAILED, young, NOW),
        (FAILED, young, NOW + 600),
        (FINE, young, NOW + 700),
        (FAILED, young, NOW + 760),
        (FAILED, young, NOW + 820),
    )
    assert [state.state for state in states] == ["starting", "starting", "ok", "failing", "restarted"]


def test_a_start_by_hand_ends_the_giving_up():
    given_up = canary.State(state="gave_up", since=NOW - 50, gave_up=NOW - 50, restarted=NOW - 5000, last_ok=NOW - 9000)
    (state,) = after((FAILED, canary.UnitTimes("active", NOW - 10), NOW), state=given_up)
    assert state.state == "starting"


def test_a_new_failure_after_a_day_may_be_answered_again():
    known = canary.State(state="ok", since=NOW, serving_since=NOW, restarted=NOW - 100, last_ok=NOW)
    soon, later = NOW + 3600, NOW + canary.RENEWED_SECONDS + 60
    assert after((FINE, LONG_AGO, soon), state=known)[0].restarted
    states = after(
        (FINE, LONG_AGO, later), (FAILED, LONG_AGO, later + 60), (FAILED, LONG_AGO, later + 120), state=known
    )
    assert [state.state for state in states] == ["ok", "failing", "restarted"]


def test_an_engine_that_ended_is_a_failure():
    dead = canary.UnitTimes("inactive", 0.0)
    assert [state.state for state in after((FAILED, dead, NOW), (FAILED, dead, NOW + 60))] == ["failing", "restarted"]


def test_an_engine_that_waits_for_another_host_is_no_failure():
    """systemd says of a unit that waits in its ExecStartPre when it was active the last time."""
    shown = "ActiveState=activating\nActiveEnterTimestampMonotonic=1\n"
    unit = canary.unit_times("dgxspark-vllm.service", lambda _argv: subprocess.CompletedProcess([], 0, shown, ""))
    assert time.time() - unit.started < 60


def runner(answers: dict[str, tuple[int, str]]) -> canary.Runner:
    """answers: the end of a command to how it ends and what it prints."""

    def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        line = " ".join(argv)
        (found,) = [answer for key, answer in answers.items() if key in line]
        return subprocess.CompletedProcess(list(argv), found[0], found[1], "")

    return run


@pytest.mark.parametrize(("sub_state", "starts"), [("start-pre", True), ("auto-restart", False), ("running", False)])
def test_an_engine_waits_while_ray_waits_for_its_address(sub_state: str, starts: bool):
    engine = "ActiveState=inactive\nActiveEnterTimestampMonotonic=1\n"
    answers = {"dgxspark-vllm": (0, engine), "dgxspark-ray": (0, f"SubState={sub_state}\n")}
    unit = canary.engine_times(runner(answers), True, 0.0)
    assert (time.time() - unit.started < 60) is starts


ACTIVE_FOR_LONG = (0, "ActiveState=active\nActiveEnterTimestampMonotonic=1\n")


@pytest.mark.parametrize(
    ("container", "age"),
    [
        ((1, "no such object"), 0),
        ((0, time.strftime("%Y-%m-%dT%H:%M:%S.123456789Z\n", time.gmtime(time.time() - 600))), 600),
    ],
)
def test_without_ray_an_engine_starts_when_all_hosts_are_there(container: tuple[int, str], age: float):
    unit = canary.engine_times(runner({"systemctl": ACTIVE_FOR_LONG, "docker": container}), False, 0.0)
    assert abs(time.time() - unit.started - age) < 60


def test_an_engine_that_has_answered_waits_for_nobody():
    """Its container may be gone, with the program that should have ended frozen."""
    unit = canary.engine_times(runner({"systemctl": ACTIVE_FOR_LONG, "docker": (1, "")}), False, time.time())
    assert time.time() - unit.started > 60


@pytest.mark.parametrize(
    "line",
    [
        'vllm:generation_tokens_total{engine="0",model_name="m"} 12.0',
        'vllm:iteration_tokens_total_sum{engine="0"} 1.2e+06',
        'sglang:realtime_tokens_total{mode="decode",model_name="m"} 12.0',
        'sglang:inter_token_latency_seconds_count{model_name="m"} 3.0',
    ],
)
def test_counters_that_move_while_the_engine_computes(line: str):
    assert len(canary._PROGRESS.findall(f"# HELP x\n{line}\nsglang:num_queue_reqs 4.0\n")) == 1


# The program


@pytest.fixture
def host(tmp_path: Path, api: FakeApi):
    """Runs the program as its unit does; the state, the exit code, what it said, and what systemctl was told."""
    told = tmp_path / "told"
    told.write_text("", encoding="utf-8")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    systemctl = binaries / "systemctl"
    systemctl.write_text(
        f'#!/bin/sh\nif [ "$1" = show ]; then printf "ActiveState=active\\nActiveEnterTimestampMonotonic=1\\n"; else echo "$*" >>{told}; fi\n',
        encoding="utf-8",
    )
    systemctl.chmod(0o755)
    archive = tmp_path / "dgxspark-canary.pyz"
    archive.write_bytes(program(canary))
    key = tmp_path / "api-key"
    key.write_text(f"{KEY}\n", encoding="utf-8")
    state_file = tmp_path / "state" / "canary.json"

    def run(*more: str) -> tuple[dict[str, Any], int, str, list[str]]:
        command = [sys.executable, "-I", str(archive), "--url", api.url, "--model", "qwen35", "--key-file", str(key)]
        command += [
            "--state-file",
            str(state_file),
            "--lease-file",
            str(tmp_path / ".lease"),
            "--timeout",
            "0.3",
            "--start-seconds",
            "0",
        ]
        done = subprocess.run(
            [*command, *more],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"},
        )
        assert KEY not in done.stdout + done.stderr + state_file.read_text(encoding="utf-8")
        return (
            json.loads(state_file.read_text(encoding="utf-8")),
            done.returncode,
            done.stdout,
            told.read_text(encoding="utf-8").splitlines(),
        )

    return run


def test_the_program_restarts_in_order_and_gives_up(host, api):
    assert host()[1] == 0
    api.mode = "hang"
    assert host()[1] == 1
    state, code, said, told = host()
    assert (state["state"], code) == ("restarted", 2)
    assert told == [
        "reset-failed dgxspark-vllm.service",
        "stop dgxspark-vllm.service",
        "restart dgxspark-ray.service",
        "start --no-block dgxspark-vllm.service",
    ]
    assert "started again, once" in said
    host()
    state, code, said, told = host()
    assert (state["state"], code, len(told)) == ("gave_up", 3, 4)
    assert "dgxspark-canary: gave up: no answer" in said
    assert host()[1] == 3 and len(host()[3]) == 4


def test_without_ray_only_the_engine_of_the_head_is_started_again(host, api):
    """The others end with it, and come back by themselves."""
    api.mode = "hang"
    assert [host("--no-ray")[1] for _number in range(2)] == [1, 2]
    assert host("--no-ray")[3] == [
        "reset-failed dgxspark-vllm.service",
        "stop dgxspark-vllm.service",
        "start --no-block dgxspark-vllm.service",
    ]


def test_the_program_leaves_a_host_alone_on_which_a_run_is_at_work(host, api, tmp_path):
    api.mode = "hang"
    (tmp_path / ".lease").write_text("{}", encoding="utf-8")
    states = [host() for _number in range(3)]
    assert [state[0]["state"] for state in states] == ["at_work"] * 3 and not api.asked and not states[-1][3]


def test_a_healthy_engine_is_not_reported_each_minute(host):
    assert "answers in" in host()[2]
    assert host()[2] == ""
