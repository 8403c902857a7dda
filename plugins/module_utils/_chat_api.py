# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A chat API in the way of OpenAI: whole answers, and streamed ones with the time of their first token.

PRIVATE to this collection.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# It finds the folder of the libraries of role host_setup, so it must be imported before them.
from ansible_collections.dgxspark.serving.plugins.module_utils._host_python import import_error

if not import_error("requests"):
    import requests


@dataclass
class Streamed:
    """A streamed answer. first_token_seconds: until the first token of reasoning, content or a tool call; 0 if none came.

    pieces: chunks that held tokens; complete: whether the stream came to its end; tokens: completion tokens, as the API counts.
    error: why there is no answer.
    """

    content: str = ""
    reasoning: str = ""
    pieces: int = 0
    tokens: int = 0
    first_token_seconds: float = 0.0
    seconds: float = 0.0
    complete: bool = False
    error: str = ""

    @property
    def tokens_per_second(self) -> float:
        """After the first token, which also waits for the prompt.

        Of an answer in one piece (an engine merges what waits for a busy API process) it is of the whole time: less than the true number.
        """
        if self.pieces < 2:
            return round(self.tokens / self.seconds, 2) if self.seconds > 0 else 0.0
        rest = self.seconds - self.first_token_seconds
        return round((self.tokens - 1) / rest, 2) if self.tokens > 1 and rest > 0 else 0.0


def read_stream(lines: Iterable[bytes], started: float, clock: Callable[[], float] = time.monotonic) -> Streamed:
    """Server-sent events of a chat completion. Raises ValueError when they are none."""
    answer = Streamed()
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        text = line.removeprefix(b"data:").strip()
        if text == b"[DONE]":
            answer.complete = True
            break
        _take(answer, json.loads(text), started, clock)
    answer.seconds = clock() - started
    return answer


def _take(answer: Streamed, chunk: Any, started: float, clock: Callable[[], float]) -> None:
    if not isinstance(chunk, Mapping):
        raise ValueError(f"a chunk is no object: {chunk!r}")
    if chunk.get("error"):
        raise ValueError(f"the engine says in the stream: {chunk['error']}")
    answer.tokens = int((chunk.get("usage") or {}).get("completion_tokens") or answer.tokens)
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        content = str(delta.get("content") or "")
        reasoning = str(delta.get("reasoning") or delta.get("reasoning_content") or "")
        if content or reasoning or delta.get("tool_calls"):
            answer.pieces += 1
            answer.first_token_seconds = answer.first_token_seconds or clock() - started
        answer.content += content
        answer.reasoning += reasoning


@dataclass(frozen=True)
class ChatApi:
    """url: with its C(/v1). key: empty for an API without one."""

    url: str
    key: str = ""
    timeout: float = 300.0

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def _address(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/{path}"

    def post(self, body: Mapping[str, Any]) -> tuple[int, Any, str]:
        """(HTTP status, parsed answer or None, text). May raise OSError."""
        response = requests.post(
            self._address("chat/completions"), json=body, headers=self._headers, timeout=self.timeout
        )
        return response.status_code, response.json() if response.ok else None, response.text

    def stream(self, body: Mapping[str, Any]) -> Streamed:
        """The answer, or one whose C(error) says why there is none."""
        started = time.monotonic()
        wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            with requests.post(
                self._address("chat/completions"),
                json=wanted,
                headers=self._headers,
                timeout=self.timeout,
                stream=True,
            ) as response:
                if not response.ok:
                    return Streamed(error=f"status {response.status_code}: {response.text[:300]}")
                return read_stream(response.iter_lines(), started)
        except (OSError, ValueError) as error:
            return Streamed(error=str(error) or type(error).__name__, seconds=time.monotonic() - started)

    def status_without_key(self) -> int:
        """What a stranger gets. Raises OSError."""
        return int(requests.get(self._address("models"), timeout=self.timeout).status_code)

    def served_name(self) -> str:
        """Name of the first model that is served. Raises OSError or ValueError."""
        response = requests.get(self._address("models"), headers=self._headers, timeout=self.timeout)
        if not response.ok:
            raise ValueError(f"status {response.status_code}: {response.text[:300]}")
        try:
            return str(response.json()["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"no model is served: {response.text[:300]}") from error


def read_key(path: str | None) -> str:
    """The key in the file, or nothing without a path. Raises OSError."""
    if not path:
        return ""
    with open(path, encoding="utf-8") as handle:
        return handle.read().strip()
