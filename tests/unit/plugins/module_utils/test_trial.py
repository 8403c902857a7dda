"""What a trial proves. The outputs are those of the program on two real H200 (torch 2.11, NCCL of CUDA 13)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._nccl_log import parse_logs
from ansible_collections.dgxspark.serving.plugins.module_utils._nccl_verdict import transport_result
from ansible_collections.dgxspark.serving.plugins.module_utils._trial import (
    Trial,
    judge_trial,
    parse_output,
    transport_line,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._trial_program import MARK

OUTPUTS = Path(__file__).parents[2] / "fixtures" / "h200" / "trial"
TRIAL = Trial("sha256:1", 0, 2, "192.168.240.12:20112", "nccl", "fp8", "run1", "/tmp/env")


def output(name: str) -> str:
    return (OUTPUTS / f"{name}.txt").read_text(encoding="utf-8")


def test_a_good_rank_has_nothing_to_say() -> None:
    result = parse_output(output("rank0"), 0)
    assert list(result.steps) == ["device", "product", "joined", "all_reduce", "done"]
    assert result.steps["product"] == {"data_type": "fp8", "right": True}
    assert result.bus_gbps == 2097.2
    assert MARK not in result.log
    assert judge_trial(TRIAL, result) == []


def test_tcp_is_seen_by_the_log_and_by_the_speed() -> None:
    results = [parse_output(output(f"socket_rank{rank}"), 0) for rank in (0, 1)]
    transport = transport_result(parse_logs([result.log for result in results]))
    assert transport["verdict"] == "socket"
    assert [finding.id for finding in judge_trial(TRIAL, results[0])] == ["TRIAL.LINK_DEGRADED"]
    said = [{"transport": transport, "bus_gbps": result.bus_gbps} for result in results]
    assert transport_line(said, "nccl") == "NCCL over TCP: 35.4 Gbit/s"


def test_a_host_without_a_usable_gpu() -> None:
    (finding,) = judge_trial(TRIAL, parse_output(output("nogpu"), 1))
    assert (finding.id, finding.severity) == ("TRIAL.NO_CUDA", "error")
    assert "No CUDA GPUs are available" in finding.message
    assert "torch._C._cuda_init()" in finding.evidence


@pytest.mark.parametrize(
    ("at", "error", "expected"),
    [
        ("import", "ModuleNotFoundError: No module named 'torch'", "TRIAL.NO_TORCH"),
        (
            "product",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "TRIAL.NO_KERNEL",
        ),
        (
            "all_reduce",
            "torch.distributed.DistStoreError: Timed out after 91 seconds waiting for clients. 1/2 clients joined.",
            "TRIAL.ALL_REDUCE_FAILED",
        ),
        ("parser", "KeyError: 'qwen3_coder'", "TRIAL.PARSER_BROKEN"),
    ],
)
def test_each_step_has_its_finding(at: str, error: str, expected: str) -> None:
    text = f'noise\n{MARK}{{"step": "failed", "at": "{at}", "error": "{error}"}}\n'
    (finding,) = judge_trial(TRIAL, parse_output(text, 1))
    assert (finding.id, finding.severity) == (expected, "error")
    assert error.split(":")[0] in finding.message


def test_a_hang_names_the_last_step() -> None:
    text = output("rank0").split(MARK + '{"step": "all_reduce"')[0]
    (finding,) = judge_trial(TRIAL, parse_output(text, None))
    assert finding.id == "TRIAL.TIMED_OUT"
    assert "the last that it did was: joined" in finding.message


def test_a_container_that_does_not_start() -> None:
    text = "docker: Error response from daemon: could not select device driver with capabilities: [[gpu]]."
    (finding,) = judge_trial(TRIAL, parse_output(text, 125))
    assert finding.id == "TRIAL.DIED"
    assert "ended with 125" in finding.message
    assert "could not select device driver" in finding.message


@pytest.mark.parametrize(
    ("gbps", "expected"), [(13.0, ["TRIAL.LINK_DEGRADED"]), (60.0, ["TRIAL.LINK_SLOW"]), (111.0, [])]
)
def test_speed(gbps: float, expected: list[str]) -> None:
    text = f'{MARK}{{"step": "all_reduce", "bus_gbps": {gbps}}}\n{MARK}{{"step": "done"}}\n'
    assert [finding.id for finding in judge_trial(TRIAL, parse_output(text, 0))] == expected
    # CPUs prove nothing about a link.
    assert judge_trial(replace(TRIAL, backend="gloo"), parse_output(text, 0)) == []


def test_a_parser_that_was_not_tried_is_no_success() -> None:
    text = (
        f'{MARK}{{"step": "parser", "kind": "reasoning", "name": "qwen3", "parser": null}}\n{MARK}{{"step": "done"}}\n'
    )
    (finding,) = judge_trial(replace(TRIAL, world_size=1), parse_output(text, 0))
    assert (finding.id, finding.severity) == ("TRIAL.PARSER_UNKNOWN", "warning")


def test_what_the_summary_says() -> None:
    ib = {"transport": {"verdict": "ib", "devices": ["rocep1s0f0", "roceP2p1s0f0"]}, "bus_gbps": 164.3}
    unknown = {"transport": {"verdict": "unknown", "devices": []}, "bus_gbps": 1.2}
    assert transport_line([ib, ib], "nccl") == "NCCL over IB, proven: 164.3 Gbit/s with roceP2p1s0f0, rocep1s0f0"
    assert transport_line([unknown, unknown], "gloo") == "not proven: the trial ran over gloo (1.2 Gbit/s)"
    assert transport_line([ib, unknown], "nccl") == "not proven: the log of NCCL does not say"
    assert transport_line([{}, {"skipped": True}], "nccl") == "not proven: the trial did not run"


def test_the_container_has_no_more_rights_than_the_engines() -> None:
    words = replace(TRIAL, docker_arguments=["--gpus", "all", "--cap-add=IPC_LOCK"]).command
    assert words[:3] == ["docker", "run", "--rm"]
    assert words[words.index("--cap-drop") :][:2] == ["--cap-drop", "ALL"]
    assert "--privileged" not in words
    assert not any("docker.sock" in word for word in words)
