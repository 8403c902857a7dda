# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How fast a served model is, at several numbers of streams at a time.

PRIVATE to this collection.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._chat_api import Streamed

Ask = Callable[[Mapping[str, Any]], Streamed]


@dataclass(frozen=True)
class Load:
    """What is asked. requests: how many each stream sends, one after the other."""

    served_name: str
    prompt: str
    max_tokens: int
    requests: int

    def body(self, label: str) -> dict[str, Any]:
        """The label goes first, so that no request finds the other's prompt in the prefix cache. All answers have the same length."""
        return {
            "model": self.served_name,
            "messages": [{"role": "user", "content": f"{label} {self.prompt}"}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }


def measure(load: Load, streams: int, ask: Ask, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """One row of the result: C(streams) at a time. Requests that failed are counted, and named once."""

    def one_stream(number: int) -> list[Streamed]:
        return [ask(load.body(f"[{streams}.{number}.{request}]")) for request in range(load.requests)]

    started = clock()
    with ThreadPoolExecutor(streams) as pool:
        answers = [answer for stream in pool.map(one_stream, range(streams)) for answer in stream]
    seconds = clock() - started
    good = [answer for answer in answers if not answer.error and answer.complete and answer.tokens]
    bad = [answer for answer in answers if answer not in good]
    tokens = sum(answer.tokens for answer in good)
    first = [answer.first_token_seconds for answer in good]
    return {
        "streams": streams,
        "requests": len(answers),
        "failed": len(bad),
        "error": next((answer.error or "the stream ended early" for answer in bad), ""),
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 2) if seconds > 0 else 0.0,
        "stream_tokens_per_second": round(statistics.median([answer.tokens_per_second for answer in good] or [0.0]), 2),
        "first_token_seconds": round(statistics.median(first or [0.0]), 3),
        "first_token_seconds_max": round(max(first, default=0.0), 3),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """For a terminal, in less than the 70 columns after which Ansible breaks a line. The last two are seconds to the first token."""
    titles = ("streams", "requests", "failed", "tokens/s", "each", "first s", "slowest s")
    lines = [" ".join(f"{title:>9}" for title in titles)]
    for row in rows:
        values = (
            *(row["streams"], row["requests"], row["failed"]),
            *(f"{row['tokens_per_second']:.1f}", f"{row['stream_tokens_per_second']:.1f}"),
            *(f"{row['first_token_seconds']:.2f}", f"{row['first_token_seconds_max']:.2f}"),
        )
        lines.append(" ".join(f"{value:>9}" for value in values))
    return lines + [f"{row['streams']} streams: {row['error']}" for row in rows if row["error"]]
