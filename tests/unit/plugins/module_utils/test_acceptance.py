"""A wrong answer, missing reasoning, an unparsed tool call, a hang: each is found; a right answer in either wording passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._acceptance import (
    Expected,
    accept,
    judge_key,
    judge_units,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._chat_api import Streamed
from ansible_collections.dgxspark.serving.plugins.module_utils._rank_snapshot import UnitState

QUESTIONS = [
    {"name": "sum", "prompt": "What is 2+2?", "content_matches": r"\b4\b", "reasoning": True},
    {
        "name": "tool",
        "prompt": "Weather in Paris?",
        "tool": {"name": "get_weather", "parameters": {}},
        "tool_arguments_match": {"city": "(?i)paris"},
    },
]


def completion(
    content: str = "2 + 2 = 4.", reasoning_field: str = "reasoning", tokens: int = 10, **message: Any
) -> dict[str, Any]:
    return {
        "choices": [{"message": {"content": content, reasoning_field: "2 plus 2 makes 4.", **message}}],
        "usage": {"completion_tokens": tokens},
    }


def tool_completion(name: str = "get_weather", arguments: str = '{"city": "Paris"}') -> dict[str, Any]:
    return completion("", tool_calls=[{"function": {"name": name, "arguments": arguments}}])


class Server:
    """Answers from a script: what to say to the sum, what to the tool question."""

    def __init__(self, plain: Any, tool: Any) -> None:
        self.plain, self.tool, self.requests = plain, tool, 0

    def __call__(self, body: Mapping[str, Any]) -> tuple[int, Any, str]:
        self.requests += 1
        answer = self.tool if "tools" in body else self.plain
        if callable(answer):
            answer = answer(self.requests)
        if isinstance(answer, OSError):
            raise answer
        return (200, answer, "") if isinstance(answer, dict) else (int(answer), None, "EngineCore encountered an issue")


def judge(plain: Any = None, tool: Any = None, expected: float = 0) -> tuple[list[str], Server]:
    server = Server(plain or completion(), tool or tool_completion())
    result = accept(QUESTIONS, "qwen35", 64, Expected(expected), server)
    return [finding.id for finding in result.findings], server


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_right_answers_pass(field: str) -> None:
    found, server = judge(completion(reasoning_field=field))
    assert found == []
    # Both questions and the first again in a row, then both at a time.
    assert server.requests == 5


@pytest.mark.parametrize(
    ("plain", "tool", "expected"),
    [
        (completion("2 + 2 = 5."), None, "ACCEPTANCE.WRONG_CONTENT"),
        (completion("It is 42."), None, "ACCEPTANCE.WRONG_CONTENT"),
        (completion(reasoning=""), None, "ACCEPTANCE.NO_REASONING"),
        (completion(reasoning=None), None, "ACCEPTANCE.NO_REASONING"),
        (completion(tokens=0), None, "ACCEPTANCE.NO_USAGE"),
        (None, completion("<tool_call>get_weather</tool_call>"), "ACCEPTANCE.NO_TOOL_CALL"),
        (None, tool_completion(arguments="{city"), "ACCEPTANCE.NO_TOOL_CALL"),
        (None, tool_completion(arguments='{"city": "Rome"}'), "ACCEPTANCE.NO_TOOL_CALL"),
        (None, tool_completion(name="get_time"), "ACCEPTANCE.NO_TOOL_CALL"),
        (500, None, "ACCEPTANCE.REQUEST_FAILED"),
        (OSError("timed out"), None, "ACCEPTANCE.REQUEST_FAILED"),
        ({"object": "list"}, None, "ACCEPTANCE.NO_COMPLETION"),
    ],
)
def test_each_fault_is_named(plain: Any, tool: Any, expected: str) -> None:
    found, _server = judge(plain, tool)
    assert found == [expected]


def test_an_engine_that_dies_at_the_third_request_is_found() -> None:
    found, server = judge(lambda number: completion() if number < 3 else 500)
    assert found == ["ACCEPTANCE.REQUEST_FAILED"]
    assert server.requests == 3


def test_slow_is_a_warning() -> None:
    found, _server = judge(expected=1e9)
    assert found == ["ACCEPTANCE.SLOW"]


GOOD_STREAM = Streamed(
    "2 + 2 = 4.", "2 plus 2 makes 4.", pieces=9, tokens=12, first_token_seconds=0.4, seconds=1, complete=True
)


# vLLM merges the tokens that wait for an API process that is behind: so may a whole short answer be.
MERGED: dict[str, Any] = {"pieces": 1}


@pytest.mark.parametrize(
    ("changes", "found", "words"),
    [
        ([{}], [], ""),
        ([{"content": "2 + 2 = ", "complete": False}], ["ACCEPTANCE.STREAM"], "ended early"),
        ([{"content": "Paris."}], ["ACCEPTANCE.STREAM"], "was streamed as 'Paris.'"),
        ([MERGED, {}], [], ""),
        ([MERGED, MERGED, {}], [], ""),
        ([MERGED, MERGED, MERGED], ["ACCEPTANCE.STREAM"], "came in one piece, 3 times"),
        # What a parser loses of a merged answer is not asked for again.
        ([{**MERGED, "content": "2 + 2"}], ["ACCEPTANCE.STREAM"], "was streamed as '2 + 2'"),
        ([MERGED, {"error": "status 500: no"}], ["ACCEPTANCE.STREAM"], "could not be streamed: status 500"),
        ([{"error": "status 500: no"}], ["ACCEPTANCE.STREAM"], "could not be streamed: status 500"),
        ([{"first_token_seconds": 2.5}], ["ACCEPTANCE.SLOW"], "2.5 s until the first token, expected are 1.0"),
    ],
)
def test_the_streamed_answer(changes: list[dict[str, Any]], found: list[str], words: str) -> None:
    asked = []

    def stream(body: Mapping[str, Any]) -> Streamed:
        asked.append(body)
        return replace(GOOD_STREAM, **changes[len(asked) - 1])

    server = Server(completion(), tool_completion())
    result = accept(QUESTIONS, "qwen35", 64, Expected(0, 1.0), server, stream)
    assert [finding.id for finding in result.findings] == found
    assert words in " ".join(finding.message for finding in result.findings)
    assert len(asked) == len(changes)
    assert result.first_token_seconds == changes[-1].get("first_token_seconds", 0.4)


def test_after_a_wrong_answer_nothing_is_streamed() -> None:
    server = Server(completion("5"), tool_completion())
    result = accept(QUESTIONS, "qwen35", 64, Expected(), server, lambda body: pytest.fail("was asked"))
    assert result.failed and result.first_token_seconds == 0


@pytest.mark.parametrize(("status", "ids"), [(401, []), (403, []), (200, ["ACCEPTANCE.KEY_NOT_REQUIRED"])])
def test_the_key_is_required(status: int, ids: list[str]) -> None:
    assert [finding.id for finding in judge_key(status)] == ids


def test_a_unit_that_ended_after_the_last_answer() -> None:
    states = [
        UnitState("dgxspark-ray.service", "active", "running", "success", 0),
        UnitState("dgxspark-vllm.service", "failed", "failed", "exit-code", 0),
    ]
    (finding,) = judge_units(states)
    assert finding.id == "ACCEPTANCE.RANK_LOST"
    assert "dgxspark-vllm.service is failed (exit-code)" in finding.message


def test_brief_asks_each_question_once_and_streams_nothing() -> None:
    server = Server(completion(), tool_completion())
    result = accept(QUESTIONS, "qwen35", 64, Expected(), server, lambda body: pytest.fail("streamed"), brief=True)
    assert (result.findings, server.requests, len(result.answers)) == ([], 2, 2)
    assert result.tokens_per_second > 0
    assert accept(QUESTIONS, "qwen35", 64, Expected(), Server(500, 500), brief=True).failed
