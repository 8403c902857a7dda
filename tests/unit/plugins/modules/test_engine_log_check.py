# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The cases of the catalogue, through the module."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.modules import engine_log_check

PHASES = {"config", "load", "profile", "kv_cache", "graph_capture", "join", "serve"}


@pytest.fixture
def check(run_module, case_text):
    """Runs the module on texts of a case; the first one holds the line that is the evidence."""

    def run(number: str, *names: str, **options: Any) -> dict[str, Any]:
        texts = [case_text(number, name) for name in names]
        forward = run_module(engine_log_check, log=texts, **options)
        backward = run_module(engine_log_check, log=texts[::-1], **options)
        # In any order.
        assert forward["cause"] == backward["cause"]
        first = forward["findings"][0]
        assert first["id"] == forward["cause"]["id"] and first["severity"] == "error"
        assert first["evidence"] and any(first["evidence"] in text for text in texts)
        assert forward["cause"]["phase"] in PHASES
        assert first["message"] in forward["msg"]
        return forward

    return run


def told(result: dict[str, Any]) -> tuple[str, str, str]:
    cause = result["cause"]
    return cause["id"], cause["phase"], cause["confidence"]


def numbers(result: dict[str, Any], *names: str) -> list[Any]:
    return [result["cause"]["numbers"][name] for name in names]


def remedy(result: dict[str, Any]) -> str:
    return str(result["findings"][0]["remedy"])


def test_case_040_a_restart_loop_is_stopped_first(check):
    result = check("040", "log", "docker-inspect.json")
    assert told(result) == ("ENGINE.FREE_MEMORY_SHORT", "load", "certain")
    assert numbers(result, "free_gib", "total_gib", "utilization", "requested_gib", "restart_count") == [
        36.75,
        121.63,
        0.85,
        103.38,
        34,
    ]
    text = remedy(result)
    assert (
        text.index("--restart=no")
        < text.index("gpu_memory_check")
        < text.index("drop_caches")
        < text.index("lower utilization")
    )
    assert "unless-stopped" in result["findings"][0]["message"]
    assert result["ladder"] is None and result["next_candidate"] is False


def test_case_041_nobody_is_to_be_stopped(check):
    result = check("041", "log", "meminfo.txt", "query-compute-apps.csv")
    assert told(result) == ("ENGINE.FREE_MEMORY_SHORT", "load", "certain")
    assert numbers(result, "short_gib", "feasible_utilization") == [0.67, 0.82]
    assert result["ladder"]["changes"] == {"utilization": 0.82}
    assert result["ladder"]["arguments"] == ["--gpu-memory-utilization", "0.82"]
    assert "nobody has to be stopped" in result["findings"][0]["message"]
    assert "holds" not in remedy(result)


@pytest.mark.parametrize(
    ("name", "wanted", "feasible", "needed", "available"),
    [
        ("v0.15.log", 262144, 34736, 24.0, 3.18),
        ("v0.29.log", 196608, 190272, 23.25, 22.5),
        ("v0.4.log", 32768, 7344, None, None),
    ],
)
def test_case_042_kv_cache_in_three_wordings(check, name, wanted, feasible, needed, available):
    result = check("042", name)
    assert told(result) == ("ENGINE.KV_CACHE_TOO_SMALL", "kv_cache", "certain")
    assert numbers(result, "max_model_len", "feasible_max_model_len") == [wanted, feasible]
    assert [result["cause"]["numbers"].get(key) for key in ("needed_gib", "available_gib")] == [needed, available]
    assert result["ladder"]["changes"] == {"max_model_len": feasible}
    assert str(feasible) in remedy(result) and "utilization" in remedy(result)


def test_case_042_utilization_comes_first_where_the_host_is_known(check):
    result = check("042", "v0.29.log", plan={"utilization": 0.8, "total_gib": 121.69})
    assert result["ladder"]["changes"] == {"utilization": 0.81}
    again = check("042", "v0.29.log", plan={"utilization": 0.81, "total_gib": 121.69, "taken": ["utilization"]})
    assert (again["ladder"]["rung"], again["ladder"]["changes"]) == (2, {"max_model_len": 190272})
    refused = check("042", "v0.29.log", plan={"min_context": 196608})
    assert refused["ladder"] is None


@pytest.mark.parametrize("name", ["log", "old-wording.log"])
def test_case_044_graph_capture_is_not_the_weights(check, name):
    result = check("044", name)
    assert told(result) == ("ENGINE.OOM_GRAPH_CAPTURE", "graph_capture", "certain")
    text = remedy(result)
    order = ["utilization", "fewer graph sizes", "max_num_seqs", "enforce_eager"]
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)
    assert result["ladder"]["name"] == "utilization"
    if name == "log":
        assert numbers(result, "graphs_captured", "graphs", "tried_gib", "total_gib") == [37, 51, 1.5, 121.69]
    else:
        assert result["cause"]["rank"] == 3


def test_case_045_architecture_and_what_is_known(check):
    result = check("045", "log")
    assert told(result) == ("ENGINE.UNKNOWN_ARCHITECTURE", "config", "certain")
    assert numbers(result, "architecture") == ["Qwen3_5MoeForConditionalGeneration"]
    assert "Qwen3NextForCausalLM" in numbers(result, "closest")[0]
    assert "0.17" in remedy(result) and "newer transformers does not help" in remedy(result)
    assert result["next_candidate"] is True and result["ladder"] is None


def test_case_046_model_type(check):
    result = check("046", "log", "config.json")
    assert told(result) == ("ENGINE.MODEL_TYPE_UNKNOWN", "config", "certain")
    assert numbers(result, "model_type") == ["qwen3_5_moe"]
    assert "newer image" in remedy(result) and result["next_candidate"] is True


@pytest.mark.parametrize("name", ["log", "v0.18-wording.log"])
def test_case_048_kernel_for_another_gpu(check, name):
    result = check("048", name, "collect_env.txt")
    assert told(result) == ("ENGINE.NO_KERNEL", "profile", "certain")
    assert "12.0+PTX" in result["findings"][0]["message"] and "eager" in result["findings"][0]["message"]
    assert "VLLM_TEST_FORCE_FP8_MARLIN=1" in remedy(result)
    assert result["ladder"] is None and result["next_candidate"] is True


def test_case_050_torch_without_the_gpu(check):
    result = check("050", "log", "pip-freeze.txt", "nvidia-smi-header.txt")
    assert told(result)[0] == "ENGINE.NO_KERNEL"
    assert numbers(result, "torch") == ["2.9.0+cu128"]
    assert "CUDA 13" in remedy(result) and "on the host do not matter" in remedy(result)


@pytest.mark.parametrize(("name", "block"), [("log", 4176), ("pydantic.log", 2096)])
def test_case_051_block_against_batch(check, name, block):
    result = check("051", name)
    assert told(result) == ("ENGINE.BATCH_TOO_SMALL", "config", "certain")
    assert numbers(result, "block_size", "max_num_batched_tokens", "suggested_batched_tokens") == [block, 2048, 8192]
    assert "do not set --block-size" in remedy(result)
    assert result["ladder"] is None


@pytest.mark.parametrize("name", ["form1.log", "form2.log"])
def test_case_053_port_of_the_api(check, name):
    result = check("053", name, "ss.txt")
    assert told(result) == ("ENGINE.PORT_IN_USE", "serve", "certain")
    assert numbers(result, "port", "holder_pid") == [8000, 4312]
    assert "restart policy" in remedy(result)


def test_case_053_port_of_the_rendezvous(check):
    result = check("053", "form3.log", "ss.txt")
    assert told(result) == ("ENGINE.RENDEZVOUS_PORT_IN_USE", "join", "certain")
    assert numbers(result, "port") == [29500]


def test_case_055_gated_and_offline_are_two_things(check):
    gated = check("055", "gated.log")
    assert told(gated)[0] == "ENGINE.WEIGHTS_GATED" and numbers(gated, "repository") == ["org/model"]
    offline = check("055", "offline.log")
    assert told(offline)[0] == "ENGINE.WEIGHTS_OFFLINE"
    assert numbers(offline, "repository") == ["Qwen/Qwen3.5-122B-A10B-FP8"]


def test_case_056_shared_memory_is_no_disk(check):
    result = check("056", "log", "df.txt")
    assert told(result) == ("ENGINE.SHM_TOO_SMALL", "join", "certain")
    assert numbers(result, "shm_size", "shm_used") == ["64M", "64M"]
    assert numbers(result, "segment_bytes")[0] in (9637888, 9637892)
    assert result["cause"]["host"] == "spark-a"
    assert "not a disk" in result["findings"][0]["message"] and "--ipc=host" in remedy(result)


@pytest.mark.parametrize("name", ["docker-run.txt", "shell.txt", "vllm.log", "vllm-newer.log"])
def test_case_057_no_ray_in_the_image(check, name):
    result = check("057", name)
    assert told(result)[:2] == ("ENGINE.RAY_MISSING", "config")
    assert "mp" in remedy(result) and result["next_candidate"] is True


def test_case_058_ray_memory_monitor(check):
    result = check("058", "log")
    assert told(result) == ("ENGINE.RAY_MEMORY_MONITOR", "load", "certain")
    assert numbers(result, "used_gb", "total_gb", "fraction") == [113.76, 119.7, 0.950345]
    assert result["cause"]["host"] == "10.99.0.2"
    assert "RAY_memory_monitor_refresh_ms=0 on every host before ray start" in remedy(result)
    assert result["ladder"] is None


@pytest.mark.parametrize(
    "more", [[], ["ray-status.txt"], ["ray-list-nodes.json"], ["ray-status.txt", "ray-list-nodes.json"]]
)
def test_case_060_wrong_address(check, more):
    result = check("060", "log", *more)
    assert told(result)[:2] == ("ENGINE.RAY_WRONG_ADDRESS", "join")
    assert numbers(result, "wanted") == ["192.168.50.192"]
    assert "VLLM_HOST_IP" in remedy(result) and "GPUs are not missing" in result["findings"][0]["message"]


@pytest.mark.parametrize("more", [[], ["ray-status.txt"]])
def test_case_061_worker_missing(check, more):
    result = check("061", "log", *more)
    assert told(result) == ("ENGINE.RAY_GPUS_MISSING", "join", "likely")
    assert numbers(result, "waited_seconds", "required_gpus") == [310, 2]
    if more:
        assert numbers(result, "ray_gpus") == [1.0]
    assert "1800 s" in result["findings"][0]["message"]


def test_case_063_two_runtimes(check):
    result = check("063", "log", "spark-b.docker-ps.txt", "spark-b.ps.txt")
    assert told(result) == ("ENGINE.RAY_TWO_RUNTIMES", "join", "certain")
    assert numbers(result, "nodes", "unique_addresses") == [3, 2]
    assert "stop the stale one" in remedy(result)


def test_case_064_versions(check):
    result = check("064", "worker.log", "images.txt")
    assert told(result) == ("ENGINE.RAY_VERSION_MISMATCH", "join", "certain")
    assert numbers(result, "cluster_ray", "own_ray", "own_python") == ["2.43.0", "2.44.1", "3.11.10"]
    assert result["cause"]["host"] == "192.168.100.12"


def test_case_084_exit_zero_is_a_death(check):
    result = check("084", "journal.txt", "systemctl-show.txt")
    assert told(result) == ("ENGINE.RANK_DIED", "serve", "likely")
    assert (result["cause"]["rank"], result["cause"]["host"]) == (0, "spark-a")
    assert numbers(result, "exec_main_status", "unit_restarts") == [0, 0]


def test_case_085_serve_is_gone(check):
    result = check("085", "log-tail.txt", "docker-ps.txt", "docker-top.txt", "curl.txt")
    assert told(result) == ("ENGINE.RANK_DIED", "serve", "likely")
    assert result["cause"]["rank"] == 2
    assert "Clean Ray's state" in remedy(result)


def test_without_logs(run_module):
    result = run_module(engine_log_check)
    assert (result["cause"], result["ladder"], result["next_candidate"]) == (None, None, False)
    assert [finding["id"] for finding in result["findings"]] == ["ENGINE.NO_LOG"]


def test_fail_on_and_files(run_module, case_text, tmp_path):
    path = tmp_path / "engine.log"
    path.write_text(case_text("045", "log"), encoding="utf-8")
    result = run_module(engine_log_check, log_path=[str(path)], fail_on=["error"])
    assert result["failed"] and result["cause"]["id"] == "ENGINE.UNKNOWN_ARCHITECTURE"
    missing = run_module(engine_log_check, log_path=[str(tmp_path / "no.log")])
    assert missing["failed"] and "no.log" in missing["msg"]


def test_a_plan_of_another_form_is_refused(run_module, case_text):
    result = run_module(engine_log_check, log=case_text("045", "log"), plan={"hosts": "spark-a"})
    assert result["failed"] and result["msg"].startswith("plan: ")


def test_kv_cache_of_a_tiny_model_has_no_numbers_to_show(run_module):
    """vLLM 0.32 for CPUs with 1.6 MB of KV cache: no length fits, and two digits of a GiB show nothing."""
    line = (
        "ValueError: To serve at least one request with the model's max seq len (4096), (0.0 GiB KV cache is needed, which is larger than "
        "the available KV cache memory (0.0 GiB). Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU "
        "backend) or decreasing `max_model_len` when initializing the engine."
    )
    result = run_module(engine_log_check, log=line, plan={"utilization": 0.52, "total_gib": 119.7})
    (finding,) = [finding for finding in result["findings"] if finding["id"] == "ENGINE.KV_CACHE_TOO_SMALL"]
    assert finding["message"].startswith("The KV cache is too small for one request of 4096 tokens")
    assert finding["remedy"] == "Lower max_model_len, or raise the utilization."


def test_what_every_healthy_start_of_ray_prints_is_no_cause(run_module):
    """Ray 2.60 without its dashboard, and an engine whose core was killed while it served."""
    noise = (
        "(raylet) [2026-11-30 22:53:15,701 E 99 99] (raylet) main.cc:1108: Failed to establish connection to the metrics exporter agent. "
        "Metrics will not be exported. Exporter agent status: RpcError: Running out of retries to initialize the metrics agent. rpc_code: 14\n"
    )
    assert run_module(engine_log_check, log=noise)["cause"] is None
    died = (
        '(APIServer pid=313) INFO 11-30 22:53:13 [api_server.py:1] Application startup complete.\nINFO:     127.0.0.1:46054 - "POST '
        '/v1/chat/completions HTTP/1.1" 200 OK\n(APIServer pid=313) WARNING 11-30 22:53:26 [core_client.py:817] [shutdown] MPClient: engine '
        "core exited unexpectedly; starting cleanup\n(APIServer pid=313) ERROR 11-30 22:53:26 [async_llm.py:906] vllm.v1.engine.exceptions."
        "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
    )
    assert run_module(engine_log_check, log=noise + died)["cause"]["id"] == "ENGINE.DIED"
