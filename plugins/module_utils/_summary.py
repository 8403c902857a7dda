# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The readable end of a run.

PRIVATE to this collection.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._backend import MP
from ansible_collections.dgxspark.serving.plugins.module_utils._trial import transport_line

_INDENT = " " * 14
# Columns of a terminal that is not wide: what is longer would break in the middle of a word.
_WIDTH = 100


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH - len(_INDENT), break_long_words=False, break_on_hyphens=False)


def _row(title: str, lines: Sequence[str]) -> list[str]:
    shown = [part for line in lines if line for part in _wrapped(line)] or ["-"]
    return [f"{title:<{len(_INDENT) - 1}} {shown[0]}", *(f"{_INDENT}{line}" for line in shown[1:])]


def _memory(host: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, first: str) -> str:
    def available(result: Mapping[str, Any] | None) -> str:
        memory = (result or {}).get("memory")
        return f"{memory['available_gib']:.1f} GiB" if memory else "not measured"

    return f"{host}: available {available(before)} before, {available(after)} when {first} started"


def summary(values: Mapping[str, Any]) -> str:
    """The summary of a run from what its gates returned.

    values: plan, choice (of image_selection), hosts (list of {name, teardown, memory_before, memory_after}), ray (of await_ranks),
    rungs (of the ladder), trial (list of results of rank_trial), trial_backend, acceptance, gates (list of (number, title, seconds)),
    waits (what to seconds), converged, check_mode.
    """
    plan = values["plan"]
    lines = ["", f"== {plan['description'] or plan['preset']}", *_image_rows(values["choice"])]
    if values["check_mode"]:
        lines += _row("check mode", ["gates 7 to 10: not evaluated in check mode"])
    lines += _teardown_rows(values)
    lines += _ranks(values)
    head = next(host for host in plan["hosts"] if host["role"] == "head")
    address = head["management_address"] or head["control_address"] or "127.0.0.1"
    served = f"model {plan['model']['served_name']}, key on {head['name']} in /etc/dgxspark/api-key"
    lines += _row("API", [f"http://{address}:{plan['api']['port']}/v1 ({served})"])
    lines += _acceptance_rows(values.get("acceptance") or {}, plan)
    # Tokens per second do not reveal a fallback to TCP, so it is said whether a trial has proven the transport.
    if len(plan["hosts"]) > 1 and not values["converged"] and not values["check_mode"]:
        lines += _row("transport", [transport_line(values.get("trial") or [], values.get("trial_backend") or "nccl")])
    waits = ", ".join(f"{what} {seconds}" for what, seconds in (values.get("waits") or {}).items())
    gates = ", ".join(f"gate {number} {title}: {seconds}" for number, title, seconds in values["gates"])
    lines += _row("seconds", [gates, f"waited for: {waits}" if waits else ""])
    return "\n".join(lines)


def _image_rows(choice: Mapping[str, Any]) -> list[str]:
    if not choice.get("image"):
        return _row(
            "image", ["not evaluated: the hosts lack the Python libraries that gate 0 brings (this is check mode)"]
        )
    chosen = f"{choice['image']} ({choice['engine']} {choice['engine_version']}): {choice['reason']}"
    rejected = [f"{entry['image']}: {entry['reason']}" for entry in choice["rejected"]]
    return _row("image", [chosen]) + _row("rejected", rejected)


def _teardown_rows(values: Mapping[str, Any]) -> list[str]:
    """What was stopped and kept on each host, and what that did to its memory."""

    def named(what: str) -> list[str]:
        return [f"{host['name']}: {name}" for host in hosts for name in (host["teardown"] or {}).get(what, [])]

    hosts = values["hosts"]
    if values["converged"]:
        return _row("changed", ["nothing: the hosts are as planned"]) + _row("kept", named("kept"))
    first = "the engine" if values["plan"]["backend"] == MP else "Ray"
    memory = [_memory(host["name"], host["memory_before"], host["memory_after"], first) for host in hosts]
    return _row("stopped", named("stopped")) + _row("kept", named("kept")) + _row("memory", memory)


def _ranks(values: Mapping[str, Any]) -> list[str]:
    lines = (
        _row("ladder", [f"rung {rung['rung']}: {rung['why']}" for rung in values["rungs"]])
        if values.get("rungs")
        else []
    )
    if values["plan"]["backend"] == MP:
        lines += _row("ranks", [f"{len(values['plan']['hosts'])} host(s) without Ray (mp)"])
    if values.get("ray"):
        lines += _row("Ray", [values["ray"].get("explanation", "")])
    return lines


def _acceptance_rows(acceptance: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    answers = acceptance.get("answers") or []
    if not answers:
        return []
    first = answers[0]
    lines = _row("question", [first["prompt"]])
    lines += _row("reasoning", first["reasoning"].splitlines())
    lines += _row("answer", first["content"].splitlines())
    calls = [f"{call['name']}({call['arguments']})" for answer in answers for call in answer["tool_calls"]]
    lines += _row("tool call", calls[:1])
    expected, first_token = plan["expected"].get("tokens_per_second"), acceptance.get("first_token_seconds")
    lines += _row(
        "speed",
        [
            f"{acceptance['tokens_per_second']} tokens/s on one stream"
            + (f", expected {expected}" if expected else "")
            + (f"; first token after {first_token} s" if first_token else "")
        ],
    )
    return lines
