# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Streamed answers of a local server: what is measured, and what is said when they break."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._chat_api import ChatApi, Streamed, read_stream
from ansible_collections.dgxspark.serving.plugins.module_utils._chat_benchmark import Load, measure, table
from ansible_collections.dgxspark.serving.plugins.modules import chat_benchmark

KEY = "k3y"
LOAD = Load("qwen35", "Tell a story.", 8, 2)


class FakeApi(http.server.ThreadingHTTPServer):
    """awaited: nobody gets an answer before so many have asked at a time.

    mode: ok, error (status 500), broken (ends without [DONE]), late (says an error in the stream).
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.mode, self.asked, self.at_a_time, self.most = "ok", [], 0, 0
        self.awaited, self.met = 1, threading.Event()
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FakeApi

    def log_message(self, *_arguments: object) -> None:
        pass

    def _event(self, value: Any) -> None:
        self.wfile.write(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode())

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "qwen35"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append({"key": self.headers["Authorization"], **body})
            self.server.at_a_time += 1
            self.server.most = max(self.server.most, self.server.at_a_time)
            if self.server.most >= self.server.awaited:
                self.server.met.set()
        self.server.met.wait(20)
        self._answer(body)
        with self.server.lock:
            self.server.at_a_time -= 1

    def _answer(self, body: dict[str, Any]) -> None:
        if self.server.mode == "error":
            self.send_response(500)
            self.end_headers()
            self.wfile.write(b"EngineCore encountered an issue")
            return
        self.send_response(200)
        self.end_headers()
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        time.sleep(0.05)
        self._event({"choices": [{"delta": {"reasoning": "hm"}}]})
        if self.server.mode == "late":
            self._event({"error": {"message": "out of memory"}})
            return
        for _token in range(int(body["max_tokens"]) - 1):
            self._event({"choices": [{"delta": {"content": "x"}}]})
        if self.server.mode == "ok":
            self._event({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
            self._event("[DONE]")


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_stream_is_measured_from_its_first_token():
    times = iter([10.5, 12.0])
    lines = [
        b": a comment",
        b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}',
        b"",
        b'data: {"choices": [{"delta": {"reasoning_content": "two and two"}}]}',
        b'data: {"choices": [{"delta": {"content": "4"}}]}',
        b'data: {"choices": [], "usage": {"completion_tokens": 4}}',
        b"data: [DONE]",
    ]
    answer = read_stream(lines, 10.0, lambda: next(times))
    assert (answer.reasoning, answer.content, answer.pieces, answer.complete) == ("two and two", "4", 2, True)
    assert (answer.first_token_seconds, answer.seconds, answer.tokens_per_second) == (0.5, 2.0, 2.0)


def test_an_answer_in_one_piece_is_not_taken_for_a_fast_one():
    """vLLM merges the tokens that wait for its API process: nothing comes after the first piece then."""
    times = iter([11.999, 12.0])
    lines = [
        b'data: {"choices": [{"delta": {"content": "two and two is four"}}]}',
        b'data: {"choices": [], "usage": {"completion_tokens": 6}}',
        b"data: [DONE]",
    ]
    assert read_stream(lines, 10.0, lambda: next(times)).tokens_per_second == 3.0


def test_several_streams_at_a_time(api):
    api.awaited = 3
    row = measure(LOAD, 3, ChatApi(api.url, KEY).stream)
    assert (row["streams"], row["requests"], row["failed"], row["tokens"], row["error"]) == (3, 6, 0, 48, "")
    assert 0.05 <= row["first_token_seconds"] <= row["first_token_seconds_max"] and row["tokens_per_second"] > 0
    assert api.most == 3 and {asked["key"] for asked in api.asked} == {f"Bearer {KEY}"}
    # No request may find its prompt in the engine's cache.
    assert len({asked["messages"][0]["content"] for asked in api.asked}) == 6
    assert all(asked["stream"] and asked["ignore_eos"] for asked in api.asked)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("error", "status 500: EngineCore encountered an issue"),
        ("broken", "the stream ended early"),
        ("late", "out of memory"),
    ],
)
def test_what_breaks_is_counted_and_named(api, mode, words):
    api.mode = mode
    row = measure(LOAD, 2, ChatApi(api.url, KEY).stream)
    assert (row["failed"], row["tokens_per_second"]) == (4, 0.0) and words in row["error"]
    assert words in table([row])[-1]


def test_nobody_there():
    answer = ChatApi("http://127.0.0.1:1/v1").stream(LOAD.body(""))
    assert isinstance(answer, Streamed) and "127.0.0.1" in answer.error


def test_the_table():
    row = {"streams": 1, "requests": 2, "failed": 0, "error": "", "tokens_per_second": 26.7}
    lines = table(
        [{**row, "stream_tokens_per_second": 27.4, "first_token_seconds": 0.41, "first_token_seconds_max": 0.434}]
    )
    assert lines[0].split() == ["streams", "requests", "failed", "tokens/s", "each", "first", "s", "slowest", "s"]
    assert lines[1].split() == ["1", "2", "0", "26.7", "27.4", "0.41", "0.43"]
    assert max(map(len, lines)) < 70


def test_the_module(api, tmp_path, run_module):
    key = tmp_path / "api-key"
    key.write_text(f"{KEY}\n", encoding="utf-8")
    result = run_module(chat_benchmark, url=api.url, api_key_file=str(key), streams=[1, 2], requests=1, max_tokens=4)
    assert result["served_name"] == "qwen35" and [row["streams"] for row in result["measurements"]] == [1, 2]
    # The first one is not counted.
    assert len(api.asked) == 4 and KEY not in json.dumps(result)
    api.mode = "error"
    failed = run_module(chat_benchmark, url=api.url, served_name="qwen35")
    assert failed["failed"] and "does not answer: status 500" in failed["msg"]
    assert run_module(chat_benchmark, url=api.url, streams=[0])["failed"]
