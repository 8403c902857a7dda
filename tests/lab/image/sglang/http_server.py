"""Stand-in of SGLang's server: its application passes all requests on to the lab's vLLM, which runs without Ray.

LAB_FAULT=hang in its environment: it prints what SGLang printed that hung after NCCL's initialisation, and waits.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

INNER_PORT = 20990
INNER = f"http://127.0.0.1:{INNER_PORT}"
HOP_HEADERS = {"transfer-encoding", "connection", "content-length", "host"}
HANG = """\
[2026-03-01 21:10:02 TP0] Init torch distributed begin.
[2026-03-01 21:10:04 TP0] sglang is using nccl==2.28.9
spark:71:71 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0
spark:71:71 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 0
spark:71:71 [0] NCCL INFO Init COMPLETE
[2026-03-01 21:10:06 TP0] Init torch distributed ends. mem usage=0.41 GB"""

app = FastAPI()


@app.api_route("/{path:path}", methods=["GET", "POST"])
async def passed_on(path: str, request: Request) -> Response:
    client = httpx.AsyncClient(timeout=300)
    headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_HEADERS}
    inner = client.build_request(request.method, f"{INNER}/{path}", headers=headers, content=await request.body())
    try:
        answer = await client.send(inner, stream=True)
    except httpx.HTTPError:
        return Response(status_code=503)
    kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_HEADERS}
    return StreamingResponse(answer.aiter_raw(), status_code=answer.status_code, headers=kept)


def vllm_command(server_args: Any) -> list[str]:
    rank, hosts = int(server_args.node_rank or 0), int(server_args.nnodes or 1)
    address, _colon, port = (server_args.dist_init_addr or "127.0.0.1:0").rpartition(":")
    command = [
        *("python3", "/opt/stand-in/vllm-command", "serve", server_args.model_path),
        *("--served-model-name", server_args.served_model_name),
        *("--host", "127.0.0.1", "--port", str(INNER_PORT)),
        *("--tensor-parallel-size", server_args.tensor_parallel_size, "--max-model-len", server_args.context_length),
        *("--max-num-seqs", server_args.max_running_requests, "--enforce-eager", "--language-model-only"),
        *("--reasoning-parser", server_args.reasoning_parser),
        *("--enable-auto-tool-choice", "--tool-call-parser", server_args.tool_call_parser),
        *("--distributed-executor-backend", "mp"),
    ]
    if hosts > 1:
        command += ["--nnodes", str(hosts), "--node-rank", str(rank)]
        command += ["--master-addr", address, "--master-port", port]
    return command + (["--headless"] if rank else [])


def launch_server(server_args: Any) -> None:
    print(f"server_args=ServerArgs({server_args})", flush=True)
    if os.environ.get("LAB_FAULT") == "hang":
        print(HANG, flush=True)
        time.sleep(3600)
    engine = subprocess.Popen(vllm_command(server_args), env={**os.environ, "PYTHONPATH": "/opt/stand-in"})
    if int(server_args.node_rank or 0):
        raise SystemExit(engine.wait())
    # As the real server: the page answers when the engine does.
    while engine.poll() is None:
        try:
            if httpx.get(f"{INNER}/health", timeout=2).status_code == 200:
                break
        except httpx.HTTPError:
            time.sleep(1)
    uvicorn.run(app, host=server_args.host, port=int(server_args.port), log_level="info")
