#!/usr/bin/python3
"""Stand-in of the command `vllm` in the image vllm-node:faulty: the real engine, which fails at a chosen moment.

LAB_FAULT in its environment says which:
no-kernel: prints what an engine prints whose image has no code for the GPU, and ends with 1;
graph-capture: prints what an engine on a GPU prints that runs out of memory while it captures graphs, and ends with 1;
small-cache: the real engine, which heeds --kv-cache-memory-bytes: the build for CPUs does not while KV_SPACE is set, as in the image;
first-request, second-of-two: the real engine serves behind this program, and its core is killed when the first completion, or a
second one at the same time, is asked for.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REAL = "/usr/local/bin/vllm-real"
# The variable of vLLM's build for CPUs (platforms/cpu.py).
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
# The real engine listens there, on the loopback address only.
INNER_PORT = 20990
CORE = b"VLLM::EngineCore"
HOP_HEADERS = {"transfer-encoding", "connection", "content-length"}

# The order and the form of the lines are those of an engine of another version than the diagnosis knows best: it ran with one process
# for each rank, and CUDA, not torch's allocator, said that memory was out.
GRAPH_CAPTURE = """\
INFO 06-05 06:14:02 [api_server.py:1287] vLLM API server version 0.9.0
INFO 06-05 06:14:20 [core.py:65] Initializing a V1 LLM engine (v0.9.0)
(VllmWorker rank=0 pid=71) INFO 06-05 06:14:31 [parallel_state.py:1064] rank 0 in world size 2 is assigned as DP rank 0, TP rank 0
(VllmWorker rank=0 pid=71) INFO 06-05 06:16:40 [gpu_model_runner.py:1549] Model loading took 58.91 GiB and 118.332 seconds
(VllmWorker rank=0 pid=71) INFO 06-05 06:17:33 [backends.py:459] Using cache directory: /root/.cache/vllm for vLLM's torch.compile
INFO 06-05 06:18:01 [kv_cache_utils.py:637] GPU KV cache size: 402,176 tokens
INFO 06-05 06:18:01 [kv_cache_utils.py:640] Maximum concurrency for 32,768 tokens per request: 12.27x
(VllmWorker rank=0 pid=71) Capturing CUDA graph shapes:  57%|#####7    | 38/67 [00:11<00:08,  3.38it/s]
(VllmWorker rank=0 pid=71) ERROR 06-05 06:18:13 [multiproc_executor.py:470] WorkerProc hit an exception.
(VllmWorker rank=0 pid=71) ERROR 06-05 06:18:13 [multiproc_executor.py:470] Traceback (most recent call last):
(VllmWorker rank=0 pid=71) ERROR 06-05 06:18:13 [multiproc_executor.py:470]   File "vllm/v1/worker/gpu_model_runner.py", line 1934, in capture_model
(VllmWorker rank=0 pid=71) ERROR 06-05 06:18:13 [multiproc_executor.py:470]     self._dummy_run(num_tokens)
(VllmWorker rank=0 pid=71) ERROR 06-05 06:18:13 [multiproc_executor.py:470]   File "torch/cuda/graphs.py", line 186, in __exit__
(VllmWorker rank=0 pid=71) ERROR 06-05 06:18:13 [multiproc_executor.py:470]     self.cuda_graph.capture_end()
(VllmWorker rank=0 pid=71) ERROR 06-05 06:18:13 [multiproc_executor.py:470] RuntimeError: CUDA error: out of memory
(VllmWorker rank=0 pid=71) ERROR 06-05 06:18:13 [multiproc_executor.py:470] For debugging consider passing CUDA_LAUNCH_BLOCKING=1
ERROR 06-05 06:18:14 [core.py:500] EngineCore failed to start.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
NO_KERNEL = """\
INFO 06-05 06:14:02 [api_server.py:1287] vLLM API server version 0.9.0
INFO 06-05 06:14:20 [core.py:65] Initializing a V1 LLM engine (v0.9.0)
(VllmWorker rank=0 pid=71) INFO 06-05 06:14:31 [gpu_model_runner.py:1520] Starting to load model
(VllmWorker rank=0 pid=71) ERROR 06-05 06:16:41 [multiproc_executor.py:470] RuntimeError: CUDA error: no kernel image is available for execution on the device
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
LOGS = {"graph-capture": GRAPH_CAPTURE, "no-kernel": NO_KERNEL}


def kill_core() -> None:
    for name in os.listdir("/proc"):
        try:
            title = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
        except OSError:
            continue
        if title.startswith(CORE):
            os.kill(int(name), signal.SIGKILL)


class Faulty:
    """in_flight_limit: so many completions at the same time kill the engine's core."""

    def __init__(self, in_flight_limit: int) -> None:
        self.in_flight_limit = in_flight_limit
        self.in_flight = 0
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        with self.lock:
            self.in_flight += 1
            if self.in_flight >= self.in_flight_limit:
                kill_core()

    def __exit__(self, *_exception: object) -> None:
        with self.lock:
            self.in_flight -= 1


def handler(faulty: Faulty) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.forward(None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if self.path.endswith("/completions"):
                with faulty:
                    # Two requests that are sent at the same time are in here at the same time.
                    time.sleep(0.5)
                    self.forward(body)
            else:
                self.forward(body)

        def forward(self, body: bytes | None) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", INNER_PORT, timeout=120)
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")
            }
            try:
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
            except OSError:
                self.send_error(503)
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_HEADERS:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while chunk := answer.read1(65536):
                self.wfile.write(chunk)
                self.wfile.flush()

        def log_message(self, *_words: object) -> None:
            """The real engine logs the requests."""

    return Handler


def value_of(arguments: list[str], name: str, default: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else default


def main(arguments: list[str]) -> int:
    fault = os.environ.get("LAB_FAULT")
    if fault == "small-cache":
        del os.environ[KV_SPACE]
    if not fault or fault == "small-cache":
        os.execv(REAL, [REAL, *arguments])
    if fault in LOGS:
        print(LOGS[fault], flush=True)
        return 1
    host, port = value_of(arguments, "--host", "0.0.0.0"), int(value_of(arguments, "--port", "8000"))
    # The last of two equal options counts.
    inner = [REAL, *arguments, "--host", "127.0.0.1", "--port", str(INNER_PORT)]
    engine = subprocess.Popen(inner)
    signal.signal(signal.SIGTERM, lambda *_arguments: engine.terminate())
    faulty = Faulty({"first-request": 1, "second-of-two": 2}[fault])
    server = ThreadingHTTPServer((host, port), handler(faulty))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return engine.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
