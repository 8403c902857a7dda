# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the engine's container is told, for vLLM and for SGLang, and who gets past SGLang's door."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_command import engine_command, sglang_arguments

PROGRAM = Path(__file__).parents[4] / "roles" / "vllm_serve" / "files" / "sglang_serve.py"
HOSTS = [
    {"name": "a", "role": "head", "rank": 0, "control_address": "192.168.200.12"},
    {"name": "b", "role": "worker", "rank": 1, "control_address": "192.168.200.13"},
]


def plan(rank: int = 0, hosts: int = 2, engine: str = "sglang", **values: Any) -> dict[str, Any]:
    return {
        "backend": "mp",
        "serving_engine": engine,
        "hosts": HOSTS[:hosts],
        "host": HOSTS[rank],
        "ports": {"mp_master": 20120},
        "api": {"bind": "0.0.0.0", "port": 8000},
        "model": {"folder": "/srv/models/m", "served_name": "qwen35"},
        "parallel": {"tensor": hosts, "pipeline": 1},
        "engine": {
            "utilization": 0.8,
            "max_model_len": 65536,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 8192,
            "reasoning_parser": "qwen3",
            "tool_call_parser": "qwen3_coder",
            **values,
        },
        "engine_arguments": ["--port", "8000"],
    }


def test_vllm_gets_the_key_in_its_own_process_only() -> None:
    head = engine_command(plan(engine="vllm"), ["--seed", 1], {"enforce_eager": True})
    assert head[:2] == ["sh", "-c"] and "cat /run/dgxspark/api-key" in head[2]
    assert head[-5:] == ["--port", "8000", "--seed", "1", "--enforce-eager"]
    worker = engine_command(plan(1, engine="vllm"))
    assert worker[:3] == ["vllm", "serve", "/srv/models/m"] and "api-key" not in " ".join(worker)


def test_sglang_gets_what_the_plan_says() -> None:
    head = " ".join(engine_command(plan(), ["--only-for-vllm"], {"max_model_len": 1}))
    assert head.startswith("python3 /run/dgxspark/vllm/sglang_serve.py --model-path /srv/models/m")
    for words in (
        "--served-model-name qwen35 --host 0.0.0.0 --port 8000 --tensor-parallel-size 2 --pipeline-parallel-size 1",
        "--mem-fraction-static 0.8 --context-length 65536 --max-running-requests 4 --chunked-prefill-size 8192",
        "--reasoning-parser qwen3 --tool-call-parser qwen3_coder",
        "--nnodes 2 --node-rank 0 --dist-init-addr 192.168.200.12:20120",
    ):
        assert words in head
    assert "only-for-vllm" not in head


def test_a_worker_of_sglang_offers_nothing_to_others() -> None:
    arguments = sglang_arguments(plan(1, sglang_arguments=["--disable-cuda-graph"]))
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert arguments[-3:] == ["--dist-init-addr", "192.168.200.12:20120", "--disable-cuda-graph"]
    assert "--nnodes" not in sglang_arguments(plan(hosts=1))


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/v1/chat/completions", b"Bearer secret", 200),
        ("/v1/chat/completions", b"Bearer secret ", 401),
        ("/v1/chat/completions", b"secret", 401),
        ("/generate", None, 401),
        ("/health", None, 200),
        ("/metrics", None, 200),
        ("/healthy", None, 401),
        ("/health/../generate", None, 401),
    ],
)
def test_the_door_of_sglang(path: str, header: bytes | None, status: int) -> None:
    async def served(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    program: dict[str, Any] = {"__name__": "sglang_serve"}
    exec(compile(PROGRAM.read_text(encoding="utf-8"), str(PROGRAM), "exec"), program)
    door = program["KeyRequired"](served, "secret")
    headers = [(b"authorization", header)] if header is not None else []
    asyncio.run(door({"type": "http", "path": path, "headers": headers}, None, send))
    assert sent[0]["status"] == status
