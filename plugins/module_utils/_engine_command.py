# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What runs in the engine's container on each host: vLLM over Ray or without it, or SGLang.

PRIVATE to this collection. Plain values in, plain values out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._backend import backend_arguments
from ansible_collections.dgxspark.serving.plugins.module_utils._ladder import as_arguments

SGLANG = "sglang"
# Only the API's process gets the key: it is in a file, and no rank of another host knows it.
_VLLM_WITH_KEY = 'VLLM_API_KEY="$(cat /run/dgxspark/api-key)" exec vllm serve "$@"'
# SGLang takes a key as an argument only, and prints its arguments: this program gives it the key in another way.
_SGLANG_PROGRAM = "/run/dgxspark/vllm/sglang_serve.py"
_LOOPBACK = "127.0.0.1"


def engine_command(
    plan: Mapping[str, Any], arguments: Sequence[Any] = (), changes: Mapping[str, Any] | None = None
) -> list[str]:
    """Program and arguments on the host of this plan.

    arguments: the user's, of C(vllm serve); changes: what the ladder has changed. Both are vLLM's: SGLang is told what the plan says and
    what the preset has in C(engine.sglang_arguments).
    """
    is_head = plan["host"]["role"] == "head"
    if plan.get("serving_engine") == SGLANG:
        return ["python3", _SGLANG_PROGRAM, *sglang_arguments(plan)]
    serve = [
        str(plan["model"]["folder"]),
        *backend_arguments(plan),
        *plan["engine_arguments"],
        *(str(argument) for argument in arguments),
        *as_arguments(changes or {}),
    ]
    return ["sh", "-c", _VLLM_WITH_KEY, "vllm-serve", *serve] if is_head else ["vllm", "serve", *serve]


def sglang_arguments(plan: Mapping[str, Any]) -> list[str]:
    """Arguments of SGLang's server (0.5) on the host of this plan. Where vLLM has another name for a value, it is the nearest one."""
    engine, parallel, hosts = plan["engine"], plan["parallel"], plan["hosts"]
    is_head = plan["host"]["role"] == "head"
    arguments = [
        *("--model-path", plan["model"]["folder"]),
        *("--served-model-name", plan["model"]["served_name"]),
        # Other ranks offer a page of their own that says they are well: nobody asks for it.
        *("--host", plan["api"]["bind"] if is_head else _LOOPBACK),
        *("--port", plan["api"]["port"]),
        *("--tensor-parallel-size", parallel["tensor"]),
        *("--pipeline-parallel-size", parallel["pipeline"]),
        *("--mem-fraction-static", engine["utilization"]),
        *("--context-length", engine["max_model_len"]),
        *("--max-running-requests", engine["max_num_seqs"]),
        *("--chunked-prefill-size", engine["max_num_batched_tokens"]),
        # The canary looks at the counters of tokens. The first questions are those of the acceptance.
        *("--enable-metrics", "--skip-server-warmup"),
    ]
    for option, name in (("--reasoning-parser", "reasoning_parser"), ("--tool-call-parser", "tool_call_parser")):
        if engine.get(name):
            arguments += [option, engine[name]]
    if len(hosts) > 1:
        head = next(host for host in hosts if host["role"] == "head")
        arguments += [
            *("--nnodes", len(hosts)),
            *("--node-rank", plan["host"]["rank"]),
            *("--dist-init-addr", f"{head['control_address']}:{plan['ports']['mp_master']}"),
        ]
    return [str(argument) for argument in [*arguments, *(engine.get("sglang_arguments") or [])]]
