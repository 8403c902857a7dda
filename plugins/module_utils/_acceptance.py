# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Does the served model answer as the preset says it must?

PRIVATE to this collection.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._chat_api import Streamed
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._rank_snapshot import UnitState

# Hangs of Ray and of graph replay showed at the second and third request and at two at a time (research on deployers, pains 3, 6).
REQUESTS_IN_A_ROW = 3
REQUESTS_AT_A_TIME = 2

# An engine that streams may still send a short answer in one piece: vLLM merges what waits while its API process is behind
# (RequestOutputCollector). Measured on busy simulated hosts: 1 of 120 answers of 23 tokens, never two running. A server that
# does not stream does it each time.
STREAM_ATTEMPTS = 3

# Sends one request body to the chat endpoint; returns (HTTP status, parsed answer or None, text). May raise OSError.
Post = Callable[[Mapping[str, Any]], tuple[int, Any, str]]

# The same, streamed.
Stream = Callable[[Mapping[str, Any]], Streamed]


@dataclass
class Answer:
    """One answered question. reasoning: of either field name; seconds: until the whole answer; tokens: completion tokens."""

    name: str
    prompt: str
    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return round(self.tokens / self.seconds, 2) if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "seconds": round(self.seconds, 3), "tokens_per_second": self.tokens_per_second}


def request_body(question: Mapping[str, Any], served_name: str, max_tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": served_name,
        "messages": [{"role": "user", "content": str(question["prompt"])}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    if question.get("tool"):
        body["tools"] = [{"type": "function", "function": dict(question["tool"])}]
    return body


def parse_answer(question: Mapping[str, Any], body: Any, seconds: float) -> Answer:
    """The answer of a chat completion. Raises ValueError when it has not the form of one."""
    answer = Answer(str(question["name"]), str(question["prompt"]), seconds=seconds)
    try:
        message = body["choices"][0]["message"]
        answer.content = str(message.get("content") or "").strip()
        # vLLM renamed the field in 2026; both mean the same.
        answer.reasoning = str(message.get("reasoning") or message.get("reasoning_content") or "").strip()
        answer.tool_calls = [dict(call["function"]) for call in message.get("tool_calls") or ()]
        answer.tokens = int((body.get("usage") or {}).get("completion_tokens") or 0)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"is no chat completion: {error!r}") from error
    return answer


def judge(question: Mapping[str, Any], answer: Answer) -> list[Finding]:
    """What is wrong with an answer."""
    findings = []
    asked = f"{question['prompt']!r}"
    evidence = json.dumps({"content": answer.content, "reasoning": answer.reasoning, "tool_calls": answer.tool_calls})[
        :500
    ]

    def wrong(finding_id: str, message: str, remedy: str) -> None:
        findings.append(Finding(f"ACCEPTANCE.{finding_id}", ERROR, "acceptance", message, remedy, evidence))

    pattern = question.get("content_matches")
    if pattern and not re.search(str(pattern), answer.content):
        wrong(
            "WRONG_CONTENT",
            f"{asked} was answered with {answer.content!r}; expected is what matches {pattern}.",
            "The weights, the quantisation or a kernel is wrong: compare the weights with the hub's checksums, try another image.",
        )
    if question.get("reasoning") and not answer.reasoning:
        wrong(
            "NO_REASONING",
            f"The answer to {asked} came without reasoning.",
            "The reasoning parser does not fit the model or its chat template (engine.reasoning_parser of the preset).",
        )
    if question.get("tool"):
        wrong_call = _wrong_tool_call(question, answer)
        if wrong_call:
            wrong(
                "NO_TOOL_CALL",
                f"{asked}: {wrong_call}.",
                "The tool-call parser does not fit (engine.tool_call_parser of the preset).",
            )
    if answer.tokens <= 0:
        wrong(
            "NO_USAGE",
            f"The answer to {asked} does not say how many tokens it has.",
            "The API is not that of the planned engine.",
        )
    return findings


def _wrong_tool_call(question: Mapping[str, Any], answer: Answer) -> str:
    name = question["tool"]["name"]
    call = next((call for call in answer.tool_calls if call.get("name") == name), None)
    if call is None:
        return f"no call of {name} was parsed, content is {answer.content!r}"
    try:
        arguments = json.loads(call.get("arguments") or "{}")
    except ValueError:
        return f"the arguments of {name} are no JSON: {call.get('arguments')!r}"
    for key, pattern in (question.get("tool_arguments_match") or {}).items():
        if not re.search(str(pattern), str(arguments.get(key, ""))):
            return f"argument {key} of {name} is {arguments.get(key)!r}"
    return ""


@dataclass(frozen=True)
class Expected:
    """What a preset expects of a single stream; 0 expects nothing."""

    tokens_per_second: float = 0.0
    first_token_seconds: float = 0.0


@dataclass
class Acceptance:
    """tokens_per_second: of the fastest single stream; first_token_seconds: of a streamed answer, 0 if none was asked for."""

    answers: list[Answer] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    first_token_seconds: float = 0.0
    tokens_per_second: float = 0.0

    @property
    def failed(self) -> bool:
        return any(finding.severity == ERROR for finding in self.findings)


def _ask(
    question: Mapping[str, Any], served_name: str, max_tokens: int, post: Post
) -> tuple[Answer | None, list[Finding]]:
    started = time.monotonic()
    try:
        status, body, text = post(request_body(question, served_name, max_tokens))
    except OSError as error:
        status, body, text = 0, None, str(error)
    seconds = time.monotonic() - started
    if status != 200:
        return None, [
            Finding(
                "ACCEPTANCE.REQUEST_FAILED",
                ERROR,
                "acceptance",
                f"{question['prompt']!r} got {f'status {status}' if status else 'no answer'} after {seconds:.1f} s.",
                "See the engine's log: journalctl -u dgxspark-vllm.",
                text[:500],
            )
        ]
    try:
        answer = parse_answer(question, body, seconds)
    except ValueError as error:
        return None, [Finding("ACCEPTANCE.NO_COMPLETION", ERROR, "acceptance", f"The answer {error}.", "", text[:500])]
    return answer, judge(question, answer)


def _wrong_in_stream(question: Mapping[str, Any], streamed: Streamed) -> str:
    pattern = question.get("content_matches")
    if streamed.error:
        return f"could not be streamed: {streamed.error}"
    if not streamed.complete:
        return f"was streamed, and the stream ended early ({streamed.pieces} pieces)"
    if pattern and not re.search(str(pattern), streamed.content):
        return f"was streamed as {streamed.content.strip()!r}; expected is what matches {pattern}"
    return ""


def _ask_streamed(
    question: Mapping[str, Any], served_name: str, max_tokens: int, stream: Stream
) -> tuple[Streamed, list[Finding]]:
    """The streamed answer to a question that was answered well in one piece, and what is wrong with it."""
    for _attempt in range(STREAM_ATTEMPTS):
        streamed = stream(request_body(question, served_name, max_tokens))
        reason = _wrong_in_stream(question, streamed)
        if reason or streamed.pieces > 1:
            break
    else:
        reason = f"was not streamed: the whole answer came in one piece, {STREAM_ATTEMPTS} times"
    if not reason:
        return streamed, []
    return streamed, [
        Finding(
            "ACCEPTANCE.STREAM",
            ERROR,
            "acceptance",
            f"The answer to {question['prompt']!r} {reason}.",
            "See the engine's log: journalctl -u dgxspark-vllm. Parsers treat streamed answers by code of their own: try another image.",
        )
    ]


def judge_key(status: int) -> list[Finding]:
    """status: what a request without the key gets."""
    if status in (401, 403):
        return []
    return [
        Finding(
            "ACCEPTANCE.KEY_NOT_REQUIRED",
            ERROR,
            "acceptance",
            f"A request without the key of the API got status {status}; expected is 401: everybody who reaches the port could use it.",
            "Use another version of the engine, or close the port to others.",
        )
    ]


def judge_units(states: Sequence[UnitState]) -> list[Finding]:
    """The units of this rank after the last answer."""
    return [
        Finding(
            "ACCEPTANCE.RANK_LOST",
            ERROR,
            "acceptance",
            f"After the answers {state.described}.",
            f"See its log: journalctl --unit={state.name}.",
        )
        for state in states
        if state.active != "active"
    ]


def accept(
    questions: Sequence[Mapping[str, Any]],
    served_name: str,
    max_tokens: int,
    expected: Expected,
    post: Post,
    stream: Stream | None = None,
    brief: bool = False,
) -> Acceptance:
    """Ask the questions and the first again, at least three requests in a row, the last of them streamed; then several at a time.

    brief: each question once. Stops at the first wrong answer.
    """
    result = Acceptance()

    def asked_well(questions_at_a_time: Sequence[Mapping[str, Any]]) -> bool:
        with ThreadPoolExecutor(len(questions_at_a_time)) as pool:
            outcomes = pool.map(lambda question: _ask(question, served_name, max_tokens, post), questions_at_a_time)
        for answer, findings in outcomes:
            if answer:
                result.answers.append(answer)
            result.findings += findings
        return not result.failed

    in_a_row = REQUESTS_IN_A_ROW - (1 if stream else 0)
    row = [*questions, *([] if brief else [questions[0]] * (in_a_row - len(questions)))]
    if not all(asked_well([question]) for question in row):
        return result
    result.tokens_per_second = max(answer.tokens_per_second for answer in result.answers)
    if stream and not brief:
        streamed, findings = _ask_streamed(questions[0], served_name, max_tokens, stream)
        result.first_token_seconds = round(streamed.first_token_seconds, 3)
        result.findings += findings
        if result.failed:
            return result
    if not brief and not asked_well([questions[number % len(questions)] for number in range(REQUESTS_AT_A_TIME)]):
        return result
    result.findings += _judge_speed(result.tokens_per_second, result.first_token_seconds, expected)
    return result


def _judge_speed(tokens_per_second: float, first_token_seconds: float, expected: Expected) -> list[Finding]:
    slow = []
    if tokens_per_second < expected.tokens_per_second:
        slow.append(f"{tokens_per_second} tokens/s on a single stream, expected are {expected.tokens_per_second}")
    if 0 < expected.first_token_seconds < first_token_seconds:
        slow.append(f"{first_token_seconds} s until the first token, expected are {expected.first_token_seconds}")
    return [
        Finding(
            "ACCEPTANCE.SLOW",
            WARNING,
            "acceptance",
            f"{reason}.",
            "Look for a fallback: eager mode, a slow kernel, one rail of two (nccl_ib_check on the engine's log).",
        )
        for reason in slow
    ]
