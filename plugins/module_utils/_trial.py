# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One rank of the trial: a short-lived container of the serving image, and what it proves.

PRIVATE to this collection.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _trial_program
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._trial_program import MARK
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    MANAGED_LABEL,
    ROLE_LABEL,
    RUN_LABEL,
    CommandRunner,
    run_command,
)

CONTAINER = "dgxspark-trial"
# A first import of torch from a 40 GB image on a cold disk takes about a minute; the rendezvous has its own limit of 90 s.
LIMIT_SECONDS = 300
# Bus bandwidth of the all-reduce in Gbit/s. Below 40 NVIDIA's own set-up of connected Sparks calls a link degraded, from 90 on good;
# one rail reaches 111 (13.9 GB/s), both 164 to 190. What is broken shows 13 or 24 (research of the field, rails of a Spark).
DEGRADED_GBPS, GOOD_GBPS = 40.0, 90.0
# GiB beside a running service: CUDA context 0.5, torch and the engine's import 2 to 3, NCCL's buffers, the message.
NEEDED_GIB = 6.0
_TAIL_LINES = 15


@dataclass(frozen=True)
class Trial:
    """What one rank does. docker_arguments: the run flags of the deployment. master: ADDRESS:PORT of rank 0."""

    image_id: str
    rank: int
    world_size: int
    master: str
    backend: str
    data_type: str
    run: str
    environment_file: str
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    docker_arguments: Sequence[str] = ()

    @property
    def command(self) -> list[str]:
        labels = {MANAGED_LABEL: "true", RUN_LABEL: self.run, ROLE_LABEL: "trial"}
        return [
            *("docker", "run", "--rm", "--interactive", "--name", CONTAINER, "--log-driver", "none"),
            *(word for name, value in labels.items() for word in ("--label", f"{name}={value}")),
            *("--network", "host", "--ipc", "host", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *self.docker_arguments,
            *("--env-file", self.environment_file, "--entrypoint", "", self.image_id),
            *("python3", "-", "--backend", self.backend, "--data-type", self.data_type),
            *("--rank", str(self.rank), "--world-size", str(self.world_size), "--master", self.master),
            *("--reasoning", self.reasoning_parser, "--tool-call", self.tool_call_parser),
        ]


@dataclass
class TrialResult:
    """steps: what the program said, by step. log: everything else it printed. returncode: None when it was ended."""

    returncode: int | None
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: str = ""

    @property
    def bus_gbps(self) -> float:
        return float(self.steps.get("all_reduce", {}).get("bus_gbps", 0.0))

    @property
    def tail(self) -> str:
        return "\n".join(self.log.strip().splitlines()[-_TAIL_LINES:])


def parse_output(output: str, returncode: int | None) -> TrialResult:
    result, log = TrialResult(returncode), []
    for line in output.splitlines():
        if not line.startswith(MARK):
            log.append(line)
            continue
        said = json.loads(line.removeprefix(MARK))
        name = said.pop("step")
        result.steps[f"{name} {said['kind']}" if name == "parser" else name] = said
    result.log = "\n".join(log)
    return result


def run_trial(trial: Trial, run: CommandRunner = run_command, limit_seconds: float = LIMIT_SECONDS) -> TrialResult:
    """Start the container and wait until it ends; it is removed in any case."""
    spec = importlib.util.find_spec(_trial_program.__name__)
    source = spec.loader.get_source(_trial_program.__name__) if spec and spec.loader else None  # type: ignore[attr-defined]
    run(["docker", "rm", "--force", CONTAINER])
    try:
        # Keeps what was printed until a time limit: not for run_command.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            trial.command,
            input=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        text = expired.stdout or b""
        return parse_output(text.decode(errors="replace") if isinstance(text, bytes) else text, None)
    finally:
        run(["docker", "rm", "--force", CONTAINER])
    return parse_output(done.stdout, done.returncode)


_REMEDIES = {
    "import": ("TRIAL.NO_TORCH", "Choose another image: this one cannot import torch."),
    "device": (
        "TRIAL.NO_CUDA",
        "Check the driver (nvidia-smi), the GPU runtime of Docker (ray_cluster_gpu_arguments), and that the image's CUDA is not newer "
        "than the driver allows.",
    ),
    "product": (
        "TRIAL.NO_KERNEL",
        "The image has no working kernel for this GPU and data type: choose an image that is built for it (GB10: sm_121, CUDA 13).",
    ),
    "all_reduce": (
        "TRIAL.ALL_REDUCE_FAILED",
        "See the first error of the rank that failed first; rails and environment are judged by nccl_ib_check.",
    ),
    "parser": ("TRIAL.PARSER_BROKEN", "Choose another image, or another parser for the preset."),
}


def judge_trial(trial: Trial, result: TrialResult) -> list[Finding]:
    """Findings about one rank, without those about the transport."""
    subject = f"rank {trial.rank}"
    failed = result.steps.get("failed")
    if failed:
        identity, remedy = _REMEDIES[failed["at"]]
        return [
            Finding(
                identity,
                ERROR,
                subject,
                f"The trial in the serving image failed: {failed['error']}.",
                remedy,
                result.tail,
            )
        ]
    if result.returncode is None:
        last = next(reversed(result.steps), "its start")
        return [
            Finding(
                "TRIAL.TIMED_OUT",
                ERROR,
                subject,
                f"The trial did not end in {LIMIT_SECONDS} s; the last that it did was: {last}.",
                "A hang after the ranks have joined is one of the fabric or of NCCL: look at both ends of each rail.",
                result.tail,
            )
        ]
    if "done" not in result.steps:
        return [
            Finding(
                "TRIAL.DIED",
                ERROR,
                subject,
                f"The container of the trial ended with {result.returncode}: {result.tail.splitlines()[-1] if result.tail else 'no output'}",
                "The engine's container has the same flags and would end in the same way.",
                result.tail,
            )
        ]
    return _judge_parsers(subject, result) + _judge_speed(subject, trial, result)


def _judge_parsers(subject: str, result: TrialResult) -> list[Finding]:
    return [
        Finding(
            "TRIAL.PARSER_UNKNOWN",
            WARNING,
            subject,
            f"Where this engine keeps its {said['kind']} parsers is not known: {said['name']} was not tried.",
        )
        for name, said in result.steps.items()
        if name.startswith("parser ") and said["parser"] is None
    ]


def _judge_speed(subject: str, trial: Trial, result: TrialResult) -> list[Finding]:
    speed = result.bus_gbps
    if trial.backend != "nccl" or trial.world_size < 2 or speed >= GOOD_GBPS:
        return []
    degraded = speed < DEGRADED_GBPS
    return [
        Finding(
            "TRIAL.LINK_DEGRADED" if degraded else "TRIAL.LINK_SLOW",
            ERROR if degraded else WARNING,
            subject,
            f"The all-reduce of all ranks reaches {speed:.1f} Gbit/s; one good rail reaches more than {GOOD_GBPS:.0f}.",
            "Use both rails of the port, check the MTU on both ends; after a hot-plug or a firmware fault, power-cycle all hosts for 30 s.",
        )
    ]


def transport_line(results: Sequence[Mapping[str, Any]], backend: str) -> str:
    """What the trial of all ranks has proven, for the summary. results: of module rank_trial."""
    ran = [result for result in results if result.get("transport")]
    if not ran:
        return "not proven: the trial did not run"
    speed = min(float(result["bus_gbps"]) for result in ran)
    if backend != "nccl":
        return f"not proven: the trial ran over {backend} ({speed:.1f} Gbit/s)"
    verdicts = {result["transport"]["verdict"] for result in ran}
    devices = sorted({name for result in ran for name in result["transport"]["devices"]})
    if verdicts == {"ib"}:
        return f"NCCL over IB, proven: {speed:.1f} Gbit/s with {', '.join(devices)}"
    return f"NCCL over TCP: {speed:.1f} Gbit/s" if "socket" in verdicts else "not proven: the log of NCCL does not say"
