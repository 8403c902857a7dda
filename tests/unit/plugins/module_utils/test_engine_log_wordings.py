# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kinds of faults in wordings that the catalogue does not have, and logs in which nothing is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_verdict import Cause, diagnose

LOGS = Path(__file__).parents[2] / "fixtures" / "engine_logs"
HOSTS = [
    {"name": "spark-a", "rank": 0, "fabric_addresses": ["192.168.100.11"], "gpus": 1},
    {"name": "spark-b", "rank": 1, "fabric_addresses": ["192.168.100.12"], "gpus": 1},
]


def cause_of(*texts: str, **plan: Any) -> Cause:
    cause = diagnose(texts, plan).cause
    assert cause is not None
    return cause


def kind(*texts: str, **plan: Any) -> tuple[str, str]:
    cause = cause_of(*texts, **plan)
    return cause.id, cause.phase


START = """\
(APIServer pid=7) INFO 05-02 10:00:01 [api_server.py:1351] vLLM API server version 0.21.0
(APIServer pid=7) INFO 05-02 10:00:01 [utils.py:233] non-default args: {'model': '/srv/models/m', 'max_model_len': 65536, \
'gpu_memory_utilization': 0.8, 'max_num_seqs': 16, 'max_num_batched_tokens': 8192}
(EngineCore pid=90) INFO 05-02 10:00:20 [ray_utils.py:601] No current placement group found. Creating a new placement group.
(EngineCore pid=90) (RayWorkerProc pid=94, ip=192.168.100.12) INFO 05-02 10:00:25 [parallel_state.py:1500] rank 1 in world size 2 \
is assigned as DP rank 0, PP rank 0, TP rank 1, EP rank 1
(EngineCore pid=90) (RayWorkerProc pid=95) INFO 05-02 10:00:25 [parallel_state.py:1500] rank 0 in world size 2 is assigned as DP \
rank 0, PP rank 0, TP rank 0, EP rank 0
"""
LOADING = (
    START
    + "(EngineCore pid=90) (RayWorkerProc pid=95) INFO 05-02 10:00:30 [gpu_model_runner.py:4100] Starting to load model m...\n"
)
SERVING = (
    LOADING
    + """\
(EngineCore pid=90) INFO 05-02 10:05:30 [gpu_worker.py:480] Available KV cache memory: 31.20 GiB
(EngineCore pid=90) (RayWorkerProc pid=95) INFO 05-02 10:06:30 [gpu_model_runner.py:5100] Graph capturing finished in 30 secs, took 1.2 GiB
(APIServer pid=7) INFO:     Started server process [7]
(APIServer pid=7) INFO:     Application startup complete.
"""
)
DEATH = """\
(EngineCore pid=90) ERROR 05-02 10:09:00 [ray_executor_v2.py:464] RayWorkerProc rank=[1] died unexpectedly, shutting down executor.
(APIServer pid=7) ERROR 05-02 10:09:01 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
"""


def of_the_worker(text: str, level: str = "ERROR") -> str:
    prefix = f"(EngineCore pid=90) (RayWorkerProc pid=94, ip=192.168.100.12) {level} 05-02 10:01:00 [worker.py:1] "
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


TRACE = """\
Traceback (most recent call last):
  File "/usr/lib/vllm/v1/worker/{file}", line 10, in {name}
    {code}
"""


@pytest.mark.parametrize(
    ("frames", "phase", "identity"),
    [
        (("gpu_model_runner.py", "load_model", "self.model = model_loader.load_model()"), "load", "ENGINE.OOM_LOAD"),
        (
            ("gpu_worker.py", "determine_available_memory", "self.model_runner.profile_run()"),
            "profile",
            "ENGINE.OOM_PROFILE",
        ),
        (
            ("gpu_worker.py", "initialize_from_config", "self.model_runner.initialize_kv_cache(c)"),
            "kv_cache",
            "ENGINE.OOM_KV_CACHE",
        ),
        (
            ("gpu_worker.py", "compile_or_warm_up_model", "self.model_runner.capture_model()"),
            "graph_capture",
            "ENGINE.OOM_GRAPH_CAPTURE",
        ),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 640.00 MiB. GPU 0 has a total capacity of 119.70 GiB",
        "RuntimeError: CUDA error: out of memory",
        "torch.AcceleratorError: CUDA error: out of memory",
    ],
)
def test_memory_is_named_after_what_the_process_did(frames, phase, identity, words):
    file, name, code = frames
    log = LOADING + of_the_worker(TRACE.format(file=file, name=name, code=code) + words) + DEATH
    cause = cause_of(log, hosts=HOSTS)
    assert (cause.id, cause.phase, cause.rank, cause.host) == (identity, phase, 1, "spark-b")
    # The same without the plan: the address is what the lines say.
    assert cause_of(log).host == "192.168.100.12"


def test_memory_at_load_does_not_climb_and_graph_capture_does():
    trace = TRACE.format(file="gpu_worker.py", name="capture_model", code="with torch.cuda.graph(g):")
    captured = diagnose([LOADING + of_the_worker(trace + "RuntimeError: CUDA error: out of memory") + DEATH])
    assert captured.rung and captured.rung.changes == {"utilization": 0.77}
    words = "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization"
    loaded = diagnose([LOADING + of_the_worker(words) + DEATH])
    assert loaded.cause and loaded.cause.id == "ENGINE.OOM_LOAD" and loaded.rung is None


def test_the_log_says_what_the_start_really_had():
    trace = TRACE.format(file="gpu_worker.py", name="capture_model", code="with torch.cuda.graph(g):")
    log = LOADING + of_the_worker(trace + "RuntimeError: CUDA error: out of memory") + DEATH
    plan = {"engine": {"utilization": 0.85, "max_num_seqs": 4}, "taken": ["utilization"]}
    first, second = (
        diagnose([log], plan).rung,
        diagnose([log], {**plan, "taken": ["utilization", "graphs", "sequences"]}).rung,
    )
    # 0.80 stands in the log, a rung below the plan's 0.85.
    assert first is not None and first.changes == {"cudagraph_capture_sizes": [1, 2, 4, 8]}
    assert second is not None and second.changes == {"utilization": 0.77}


def test_memory_while_serving():
    trace = TRACE.format(file="gpu_model_runner.py", name="execute_model", code="self._model_forward()")
    text = of_the_worker(trace + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.").replace(
        "10:01", "10:08"
    )
    assert kind(SERVING + text + DEATH) == ("ENGINE.OOM_SERVING", "serve")


SGLANG = """\
[2026-05-02 10:00:00] server_args=ServerArgs(model_path='/srv/models/m', tp_size=2, mem_fraction_static=0.8, port=30000)
[2026-05-02 10:00:10 TP0] Init torch distributed begin.
[2026-05-02 10:00:11 TP0] sglang is using nccl==2.28.9
spark-a:412:412 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
spark-a:412:412 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1
"""


def test_sglang_hangs_after_init():
    diagnosis = diagnose([SGLANG])
    assert diagnosis.cause is not None
    assert (diagnosis.cause.id, diagnosis.cause.phase) == ("ENGINE.HANG_AFTER_INIT", "join")
    assert diagnosis.next_candidate and diagnosis.rung is None
    assert "via NET/IB/1" in diagnosis.cause.evidence


def test_vllm_waits_for_a_rank_that_does_not_come():
    log = (
        "\n".join(START.splitlines()[:3])
        + "\n(EngineCore pid=90) (RayWorkerProc pid=95) INFO 05-02 10:00:24 [parallel_state.py:1906] "
    )
    log += "world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://192.168.100.11:1 backend=gloo\n"
    diagnosis = diagnose([log])
    assert diagnosis.cause is not None
    assert (diagnosis.cause.id, diagnosis.cause.phase, diagnosis.next_candidate) == (
        "ENGINE.RANKS_MISSING",
        "join",
        False,
    )
    worker = of_the_worker(
        "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find interface for: nope0"
    )
    assert cause_of(log, worker).id == "ENGINE.GLOO_INTERFACE"


def test_sglang_runs_out_of_memory_in_graph_capture():
    log = (
        SGLANG
        + """\
[2026-05-02 10:01:00 TP0] Load weight begin. avail mem=100.10 GB
[2026-05-02 10:03:00 TP1] Capture cuda graph begin. This can take up to several minutes. avail mem=5.10 GB
[2026-05-02 10:03:30 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/sgl/python/sglang/srt/managers/scheduler.py", line 1748, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank, dp_rank)
  File "/sgl/python/sglang/srt/model_executor/cuda_graph_runner.py", line 269, in __init__
    raise Exception(
Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of 119.70 GiB of \
which 310.00 MiB is free.
[2026-05-02 10:03:31] Received sigquit from a child process. It usually means the child failed.
"""
    )
    cause = cause_of(log)
    assert (cause.id, cause.phase) == ("ENGINE.OOM_GRAPH_CAPTURE", "graph_capture")
    assert cause.numbers["total_gib"] == 119.7


@pytest.mark.parametrize(
    ("line", "identity"),
    [
        (
            "ValueError: Model architectures ['FooForCausalLM'] failed to be inspected. Please check the logs",
            "ENGINE.UNKNOWN_ARCHITECTURE",
        ),
        (
            "ValueError: Cannot find model module. 'FooForCausalLM' is not a registered model",
            "ENGINE.UNKNOWN_ARCHITECTURE",
        ),
        ("ValueError: Unknown quantization method: nvfp4. Must be one of ['awq']", "ENGINE.QUANTIZATION_UNKNOWN"),
        ("vllm serve: error: unrecognized arguments: --model-impl vllm", "ENGINE.ARGUMENT_REFUSED"),
        ("KeyError: 'invalid tool call parser: qwen3_coder (chose from { hermes })'", "ENGINE.ARGUMENT_REFUSED"),
        ("ModuleNotFoundError: No module named 'flashinfer'", "ENGINE.BROKEN_IMPORT"),
        ("ImportError: /opt/vllm/_C.abi3.so: undefined symbol: _ZNK3c106SymInt", "ENGINE.BROKEN_IMPORT"),
        (
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
            "ENGINE.BROKEN_IMPORT",
        ),
        ("ImportError: cannot import name 'Foo' from 'transformers' (/usr/lib/x.py)", "ENGINE.BROKEN_IMPORT"),
        ("RuntimeError: No CUDA GPUs are available", "ENGINE.NO_GPU"),
        ("exec /usr/local/bin/vllm: exec format error", "ENGINE.WRONG_PLATFORM"),
        ("docker: Error response from daemon: No such image: vllm-node:0.32", "ENGINE.IMAGE_MISSING"),
        (
            "ValueError: User-specified max_model_len (300000) is greater than the derived max_model_len (max_position_embeddings=262144 "
            "or model_max_length=None in model's config.json).",
            "ENGINE.CONTEXT_TOO_LONG",
        ),
        (
            "ValueError: Total number of attention heads (32) must be divisible by tensor parallel size (3).",
            "ENGINE.NOT_DIVISIBLE",
        ),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "ENGINE.NO_KERNEL"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12080).", "ENGINE.DRIVER_TOO_OLD"),
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata",
            "ENGINE.WEIGHTS_DAMAGED",
        ),
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('::', 8000, 0, 0): address already in use",
            "ENGINE.PORT_IN_USE",
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
            "ENGINE.RANKS_MISSING",
        ),
        ("RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error", "ENGINE.GLOO_INTERFACE"),
        (
            "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find interface for: enp9s0",
            "ENGINE.GLOO_INTERFACE",
        ),
        (
            "RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 64 MiB free. Increase /dev/shm",
            "ENGINE.SHM_TOO_SMALL",
        ),
        (
            "ray.exceptions.RaySystemError: InvalidAuthToken: Authentication token is missing or incorrect",
            "ENGINE.RAY_TOKEN_REFUSED",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled system error",
            "ENGINE.NCCL_FAILED",
        ),
        (
            "ValueError: Available memory on node 0 (4.50/23.54 GiB) on startup is less than desired CPU memory utilization (0.52, 12.24 "
            "GiB). Reduce CPU memory used by other processes.",
            "ENGINE.FREE_MEMORY_SHORT",
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "ENGINE.KV_CACHE_TOO_SMALL",
        ),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "ENGINE.KV_CACHE_TOO_SMALL"),
        (
            "ValueError: Current node has no GPU available. current_node_resource={'CPU': 112.0}",
            "ENGINE.RAY_GPUS_MISSING",
        ),
        (
            "Exception: No node info found matching attributes: {'node_ip_address': '10.0.0.1'}",
            "ENGINE.RAY_WRONG_ADDRESS",
        ),
        ("RuntimeError: CUDA driver error: out of memory", "ENGINE.OOM_LOAD"),
        ("cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY", "ENGINE.OOM_LOAD"),
        ("[fatal] failed to allocate 2147483648 bytes for the graph pool", "ENGINE.OOM_LOAD"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "ENGINE.OOM_LOAD"),
        ("Fatal Python error: Segmentation fault", "ENGINE.CRASHED"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "ENGINE.GPU_FAULT"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "ENGINE.OOM_LOAD"),
    ],
)
def test_kinds_in_other_words(line, identity):
    assert cause_of(f"(APIServer pid=7) {line}\n").id == identity
    # Also through the journal, in colours, and as Ray repeats it.
    coloured = f"Jul  7 18:24:42 spark-a docker[88]: \x1b[36m(RayWorkerProc pid=9, ip=192.168.100.12)\x1b[0m {line} [repeated 3x across cluster]"
    assert cause_of(coloured).id == identity


@pytest.mark.parametrize(
    "line",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/models/m/model-00003-of-00038.safetensors'",
        "OSError: /srv/models/m does not appear to have a file named config.json.",
        "ValueError: Invalid repository ID or local directory specified: '/srv/models/m'",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/srv/models/m'.",
        "RuntimeError: Cannot find any model weights with `/srv/models/m`",
    ],
)
def test_model_missing_on_one_rank(line):
    cause = cause_of(LOADING + of_the_worker(line) + DEATH, hosts=HOSTS)
    assert (cause.id, cause.phase, cause.rank, cause.host) == ("ENGINE.MODEL_MISSING", "load", 1, "spark-b")
    assert "/srv/models/m" in cause.message and "spark-b" in cause.message


def test_killers_of_the_host_explain_the_death():
    kernel = "Jul  2 10:08:59 spark-b kernel: Out of memory: Killed process 4123 (VLLM::Worker_TP) total-vm:9kB, anon-rss:118000kB, file-rss:0kB"
    earlyoom = 'Jul  2 10:08:59 spark-b earlyoom[812]: sending SIGTERM to process 4123 uid 0 "VLLM::Worker_TP": badness 905, VmRSS 99012 MiB'
    oomd = "Jul  2 10:08:59 spark-b systemd-oomd[7]: Killed /system.slice/docker-0a1b.scope due to memory pressure for /system.slice"
    log = LOADING + DEATH
    for line, identity in (
        (kernel, "ENGINE.KILLED_BY_KERNEL"),
        (earlyoom, "ENGINE.KILLED_BY_EARLYOOM"),
        (oomd, "ENGINE.KILLED_BY_EARLYOOM"),
    ):
        cause = cause_of(log, line + "\n", hosts=HOSTS)
        assert (cause.id, cause.rank, cause.host) == (identity, 1, "spark-b")


def test_the_hosts_journal_is_of_the_phase_that_the_engine_was_in():
    guard = (
        "Jul  2 10:08:59 spark-b dgxspark-memguard[7]: dgxspark-memguard: killed dgxspark-ray (role worker): MemAvailable 3993 MiB is "
        "below the floor of 4096 MiB (2 readings)\n"
    )
    capturing = LOADING + "(EngineCore pid=90) Capturing CUDA graphs (PIECEWISE):  10%| | 1/10 [00:01<00:09]\n"
    for texts in ([capturing + DEATH, guard], [guard, capturing + DEATH]):
        diagnosis = diagnose(texts)
        assert diagnosis.cause is not None
        assert (diagnosis.cause.id, diagnosis.cause.phase, diagnosis.cause.host) == (
            "ENGINE.KILLED_BY_MEMGUARD",
            "graph_capture",
            "spark-b",
        )
        assert diagnosis.rung is not None and diagnosis.rung.changes == {"utilization": 0.77}
    assert kind(SERVING + DEATH, guard) == ("ENGINE.KILLED_BY_MEMGUARD", "serve")


def test_a_kill_before_this_start_is_another_story():
    def in_journal(text: str, when: str) -> str:
        return "".join(f"2026-07-02T{when}+0000 spark-a docker[1]: {line}\n" for line in text.splitlines())

    kernel = "2026-07-02T09:00:00+0000 spark-a kernel: Out of memory: Killed process 9 (VLLM::Worker) total-vm:9kB, anon-rss:1kB\n"
    assert kind(in_journal(LOADING + DEATH, "10:00:00"), kernel)[0] == "ENGINE.RANK_DIED"
    assert kind(in_journal(LOADING + DEATH, "08:00:00"), kernel)[0] == "ENGINE.KILLED_BY_KERNEL"


def test_the_drivers_shortage_explains_a_death_and_is_none_by_itself():
    driver = "[Mon Sep 14 10:08:00 2026] NVRM: nvAssertOkFailedNoLog: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x\n"
    assert kind(LOADING + DEATH, driver) == ("ENGINE.DRIVER_OUT_OF_MEMORY", "load")
    assert diagnose([LOADING, driver]).cause is None


def test_a_killed_browser_is_no_cause():
    line = "Jul  2 10:08:59 spark-b kernel: Out of memory: Killed process 4123 (chromium) total-vm:9kB, anon-rss:118000kB\n"
    assert cause_of(LOADING + DEATH, line).id == "ENGINE.RANK_DIED"


def test_rays_report_of_no_kills_is_no_cause():
    line = "[2026-05-02 10:01:00,117 E 211 211] (raylet) node_manager.cc:3069: 0 Workers (tasks / actors) killed due to memory pressure (OOM)\n"
    assert cause_of(LOADING + line + DEATH).id == "ENGINE.RANK_DIED"


def test_a_lost_host_wins_over_what_it_caused():
    log = (
        SERVING
        + """\
(EngineCore pid=90) INFO 05-02 10:08:00 [shm_broadcast.py:688] No available shared memory broadcast block found in 60 seconds.
(EngineCore pid=90) (raylet) The node with node id: 4f60 and address: 192.168.100.12 and node name: 192.168.100.12 has been marked \
dead because the detector has missed too many heartbeats from it.
"""
        + DEATH
    )
    cause = cause_of(log, hosts=HOSTS)
    assert (cause.id, cause.phase, cause.host) == ("ENGINE.RAY_NODE_LOST", "serve", "spark-b")


def test_the_root_cause_wins_whatever_comes_first():
    late_root = of_the_worker("FileNotFoundError: [Errno 2] No such file or directory: '/srv/models/m/config.json'")
    timeout = "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited\n"
    for texts in ([LOADING + DEATH + timeout, late_root], [late_root, timeout + LOADING + DEATH]):
        cause = cause_of(*texts)
        assert cause.id == "ENGINE.MODEL_MISSING"


def test_interleaved_ranks_keep_their_tracebacks():
    worker = of_the_worker(
        TRACE.format(file="gpu_worker.py", name="profile_run", code="x()") + "RuntimeError: CUDA error: out of memory"
    )
    noise = "(EngineCore pid=90) (RayWorkerProc pid=95) INFO 05-02 10:01:00 [a.py:1] Capturing CUDA graphs would come later\n"
    log = (
        LOADING
        + noise.join(worker.splitlines(keepends=True)).replace("Capturing CUDA graphs would", "This would")
        + DEATH
    )
    assert kind(log) == ("ENGINE.OOM_PROFILE", "profile")


def test_unknown_shows_the_first_traceback():
    trace = TRACE.format(file="qwen.py", name="forward", code="x()")
    log = (
        LOADING
        + of_the_worker(trace + "AssertionError: rotary dim 17 is odd")
        + DEATH.replace("RayWorkerProc", "RayWorkerProc")
    )
    diagnosis = diagnose([log])
    assert diagnosis.cause is not None
    assert (diagnosis.cause.id, diagnosis.cause.confidence) == ("ENGINE.UNKNOWN", "unknown")
    assert "rotary dim 17" in diagnosis.cause.evidence and "qwen.py:10" in diagnosis.cause.message
    assert diagnosis.rung is None and not diagnosis.next_candidate
    assert [finding.id for finding in diagnosis.findings] == ["ENGINE.UNKNOWN", "ENGINE.CONSEQUENCE"]


def test_a_hang_in_any_phase_needs_the_caller():
    assert diagnose([LOADING]).cause is None
    assert [finding.id for finding in diagnose([LOADING]).findings] == ["ENGINE.NOT_READY"]
    assert kind(LOADING, stalled_seconds=900) == ("ENGINE.HANG", "load")
    waiting = "(EngineCore pid=90) INFO 05-02 10:08:00 [shm_broadcast.py:688] No available shared memory broadcast block found in 60 seconds.\n"
    assert diagnose([LOADING + waiting]).cause is None
    cause = cause_of(LOADING + waiting * 3)
    assert (cause.id, cause.next_candidate) == ("ENGINE.HANG", True)


def test_collective_timeout_moves_on():
    line = "[rank1]:[E909 08:45:30.126335825 ProcessGroupNCCL.cpp:684] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600000 milliseconds before timing out.\n"
    diagnosis = diagnose([START + line])
    assert diagnosis.cause is not None
    assert (diagnosis.cause.id, diagnosis.cause.rank, diagnosis.next_candidate) == (
        "ENGINE.COLLECTIVE_TIMEOUT",
        1,
        True,
    )
    assert diagnosis.cause.numbers["operation"] == "ALLREDUCE"


def test_a_failed_request_long_ago_is_not_why_a_rank_died():
    request = """\
INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "/usr/lib/starlette/errors.py", line 186, in __call__
ValueError: The decoder prompt is too long.
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/usr/lib/starlette/errors.py", line 186, in __call__
(APIServer pid=7) ValueError: The decoder prompt is too long.
"""
    assert kind(SERVING + request + DEATH) == ("ENGINE.RANK_DIED", "serve")
    core = of_the_worker(
        TRACE.format(file="m.py", name="execute_model", code="x()") + "IndexError: index 9 is out of bounds"
    )
    assert kind(SERVING + request + core + DEATH) == ("ENGINE.UNKNOWN", "serve")


def test_a_rank_that_was_killed():
    log = (
        LOADING
        + "(EngineCore pid=90) ERROR 05-02 10:05:00 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly \
(exit code: -9), shutting down executor.\n"
    )
    cause = cause_of(log)
    assert (cause.id, cause.rank, cause.numbers["exit_code"]) == ("ENGINE.RANK_DIED", 1, -9)
    assert "SIGKILL" in cause.message


def test_rays_report_of_another_ranks_failure():
    log = (
        LOADING
        + """\
(EngineCore pid=90) Traceback (most recent call last):
(EngineCore pid=90)   File "/usr/lib/vllm/executor/ray.py", line 1, in _run_workers
(EngineCore pid=90) ray.exceptions.RayTaskError(LookupError): ray::RayWorkerWrapper.execute_method() (pid=94, ip=192.168.100.12)
(EngineCore pid=90)   File "/usr/lib/vllm/model.py", line 77, in load
(EngineCore pid=90) LookupError: expert 17 has no rank
"""
    )
    cause = cause_of(log + DEATH)
    assert cause.id == "ENGINE.UNKNOWN" and "expert 17 has no rank" in cause.evidence and "model.py:77" in cause.message


def test_unknown_without_a_traceback_shows_the_first_error():
    log = (
        LOADING
        + """\
(EngineCore pid=90) ERROR 05-02 10:05:00 [core.py:1] the flux compensator is not calibrated
(EngineCore pid=90) ERROR 05-02 10:05:00 [core.py:1] EngineCore failed to start.
"""
    )
    cause = cause_of(log)
    assert (cause.id, cause.phase, cause.confidence) == ("ENGINE.UNKNOWN", "load", "unknown")
    assert "flux compensator" in cause.evidence


# Nothing is wrong


@pytest.mark.parametrize("name", ["served_and_stopped", "interrupted", "ray_worker_stopped"])
def test_real_logs_without_a_fault(name):
    assert diagnose([(LOGS / f"{name}.log").read_text(encoding="utf-8")]).cause is None


HARMLESS = """\
(APIServer pid=7) WARNING 05-02 10:00:02 [import_utils.py:9] Failed to import from vllm._moe_C: ModuleNotFoundError: No module named 'x'
(EngineCore pid=90) WARNING 05-02 10:00:22 [ray_utils.py:352] Tensor parallel size (2) exceeds available GPUs (1). This may result in \
Ray placement group allocation failures.
(EngineCore pid=90) INFO 05-02 10:00:23 [ray_utils.py:214] Waiting for creating a placement group of specs for 10 seconds. \
specs=[{'node:192.168.100.11': 0.001, 'GPU': 1.0}, {'GPU': 1.0}]. Check `ray status`
(raylet) [2026-05-02 10:00:23,417 W 6 6] gcs_client.cc:180: Failed to connect to GCS at address 192.168.100.11:6379 within 5 seconds.
Exception in thread Thread-5 (_report_usage_worker):
Traceback (most recent call last):
  File "/usr/lib/python3.12/threading.py", line 1073, in _bootstrap_inner
    self.run()
requests.exceptions.ConnectionError: HTTPSConnectionPool(host='stats.vllm.ai', port=443): Max retries exceeded
(EngineCore pid=90) INFO 05-02 10:03:30 [shm_broadcast.py:688] No available shared memory broadcast block found in 60 seconds. This \
typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation).
(EngineCore pid=90) INFO 05-02 10:04:30 [shm_broadcast.py:688] No available shared memory broadcast block found in 60 seconds.
spark-a:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : No device found. Call to ibv_modify_qp failed, retrying
"""


def test_warnings_and_retries_of_a_start_that_serves():
    first, rest = SERVING.split("(EngineCore pid=90) INFO 05-02 10:05:30", 1)
    assert diagnose([first + HARMLESS + "(EngineCore pid=90) INFO 05-02 10:05:30" + rest]).cause is None


def test_failed_requests_of_an_engine_that_serves():
    log = (
        SERVING
        + """\
(APIServer pid=7) ERROR:    Exception in ASGI application
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/usr/lib/starlette/errors.py", line 186, in __call__
(APIServer pid=7) ValueError: The decoder prompt (length 70000) is longer than the maximum model length of 65536.
(APIServer pid=7) INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
(APIServer pid=7) INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK
"""
    )
    assert diagnose([log]).cause is None


def test_an_earlier_start_does_not_count():
    failed = LOADING + of_the_worker("RuntimeError: CUDA error: out of memory") + DEATH
    assert diagnose([failed + SERVING]).cause is None
    # While it starts again, the start before is what there is to tell.
    assert kind(failed + START.replace("10:00", "10:20")) == ("ENGINE.OOM_LOAD", "load")


def test_secrets_are_not_shown():
    log = (
        START
        + "(APIServer pid=7) INFO 05-02 10:00:01 [u.py:2] non-default args: {'api_key': ['s3cret-key-9'], 'port': 8000}\n"
    )
    log += "(APIServer pid=7) huggingface_hub.errors.GatedRepoError: 401 Client Error hf_abcdefghijklmnopqrstuvwx\n"
    diagnosis = diagnose([log])
    shown = repr(diagnosis)
    assert "s3cret-key-9" not in shown and "hf_abcdefgh" not in shown
    assert "ENGINE.KEY_PRINTED" in [finding.id for finding in diagnosis.findings]


def test_generic_implementation():
    note = "(APIServer pid=7) INFO 05-02 10:00:02 [model.py:733] Resolved architecture: TransformersMultiModalMoEForCausalLM\n"
    assert diagnose([SERVING + note]).cause is None
    failed = (
        LOADING
        + note
        + of_the_worker(TRACE.format(file="m.py", name="f", code="x()") + "OSError: can not do that")
        + DEATH
    )
    diagnosis = diagnose([failed])
    assert diagnosis.cause is not None
    assert (diagnosis.cause.id, diagnosis.cause.confidence) == ("ENGINE.UNKNOWN_ARCHITECTURE", "likely")
    assert diagnosis.next_candidate


def test_an_engine_that_is_gone_at_a_request_has_died_and_the_heading_of_a_traceback_is_no_cause() -> None:
    """Read off vLLM 0.32 whose core was killed: only the API's process says something."""
    log = (
        SERVING
        + """\
(APIServer pid=7) ERROR 05-02 10:09:01 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=7) ERROR 05-02 10:09:01 [async_llm.py:906] Traceback (most recent call last):
(APIServer pid=7) ERROR 05-02 10:09:01 [async_llm.py:906]   File "vllm/v1/engine/async_llm.py", line 849, in output_handler
(APIServer pid=7) ERROR 05-02 10:09:01 [async_llm.py:906]     outputs = await engine_core.get_output_async()
(APIServer pid=7) ERROR 05-02 10:09:01 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. \
See stack trace (above) for the root cause.
(APIServer pid=7) INFO:     127.0.0.1:38480 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
"""
    )
    assert kind(log) == ("ENGINE.DIED", "serve")


@pytest.mark.parametrize("prefix", ["", "2026-05-02T10:09:00+0000 spark-a docker[12820]: "])
def test_what_ray_guesses_is_no_evidence(prefix: str) -> None:
    guess = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit detail: Worker unexpectedly "
        "exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer due "
        "to high memory usage, (2) ray stop --force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another error.\n"
    )
    cause = cause_of(LOADING + prefix + guess + DEATH)
    assert (cause.id, cause.rank) == ("ENGINE.RANK_DIED", 1)


def test_what_fails_after_a_rank_was_lost_is_no_cause() -> None:
    after = """\
(EngineCore pid=90) ERROR 05-02 10:09:02 [core.py:1750] Invocation of reset_mm_cache method failed
(EngineCore pid=90) ERROR 05-02 10:09:02 [core.py:1750] Traceback (most recent call last):
(EngineCore pid=90) ERROR 05-02 10:09:02 [core.py:1750]   File "vllm/v1/executor/multiproc_executor.py", line 395, in collective_rpc
(EngineCore pid=90) ERROR 05-02 10:09:02 [core.py:1750]     assert self.rpc_broadcast_mq is not None, (
(EngineCore pid=90) ERROR 05-02 10:09:02 [core.py:1750] AssertionError: collective_rpc should not be called on follower node
"""
    cause = cause_of(LOADING + DEATH + after)
    assert (cause.id, cause.rank) == ("ENGINE.RANK_DIED", 1)
    # Before the loss it is why the rank was lost.
    assert kind(LOADING + after.replace("10:09:02", "10:08:59") + DEATH)[0] == "ENGINE.UNKNOWN"
