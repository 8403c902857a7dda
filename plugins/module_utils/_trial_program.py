# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What runs in the serving image before it serves: does the GPU compute, are the parsers there, do the ranks reach each other?

PRIVATE to this collection. Its source is fed to the image's own Python: it may import only what an engine's image has (torch, the
engine) and the standard library, and nothing of this collection. Each step prints one line of JSON behind C(MARK); everything
else that is printed is the log.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import sys
import time
from typing import Any

MARK = "DGXSPARK-TRIAL "
# Where vLLM keeps its parsers, newest first; the second names are those before 0.11.
_PARSER_HOMES = {
    "reasoning": (("vllm.reasoning", "ReasoningParserManager", "get_reasoning_parser"),),
    "tool_call": (
        ("vllm.tool_parsers", "ToolParserManager", "get_tool_parser"),
        ("vllm.entrypoints.openai.tool_parsers", "ToolParserManager", "get_tool_parser"),
    ),
}
# Bytes of the messages of the all-reduce. The small one is what a decode step sends, the large one fills the link and still fits
# beside a running service.
SMALL_BYTES, LARGE_BYTES = 8 * 1024, 128 * 1024**2
_WARM_UP, _ROUNDS = 2, 5
# All ranks start within seconds of each other; the rest is the import of torch on a busy host.
RENDEZVOUS_SECONDS = 90
# Side of the matrices: a multiple of 16, which FP8 kernels need.
_SIDE = 512


def _say(step: str, **values: Any) -> None:
    sys.stdout.write(MARK + json.dumps({"step": step, **values}) + "\n")
    sys.stdout.flush()


def _device(torch: Any, backend: str) -> str:
    if backend == "gloo":
        _say("device", device="cpu", torch=torch.__version__)
        return "cpu"
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    capability = ".".join(str(part) for part in torch.cuda.get_device_capability())
    _say(
        "device",
        device=torch.cuda.get_device_name(),
        capability=capability,
        torch=torch.__version__,
        cuda=torch.version.cuda,
        free_gib=round(free / 1024**3, 2),
        total_gib=round(total / 1024**3, 2),
    )
    return "cuda"


def _multiply(torch: Any, device: str, data_type: str) -> None:
    """A product of ones, whose every element is known, in the data type of the weights (bf16 where torch has no plain product)."""
    ones = torch.ones((_SIDE, _SIDE), device=device, dtype=torch.bfloat16)
    used = "bf16"
    if data_type == "fp8" and device == "cuda":
        used = "fp8"
        scale = torch.ones((), device=device)
        eights = ones.to(torch.float8_e4m3fn)
        product = torch._scaled_mm(eights, eights.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    else:
        product = ones @ ones
    right = bool((product == _SIDE).all().item())
    _say("product", data_type=used, right=right)
    if not right:
        raise ArithmeticError(f"a product of ones has other elements than {_SIDE}")


def _parsers(wanted: dict[str, str]) -> None:
    for kind, name in wanted.items():
        for module, manager, method in _PARSER_HOMES[kind]:
            try:
                home = importlib.import_module(module)
            except ModuleNotFoundError as error:
                if not module.startswith(str(error.name)):
                    raise
                continue
            parser = getattr(getattr(home, manager), method)(name)
            _say("parser", kind=kind, name=name, parser=parser.__name__)
            break
        else:
            _say("parser", kind=kind, name=name, parser=None)


def _all_reduce(torch: Any, device: str, options: argparse.Namespace) -> None:
    distributed = importlib.import_module("torch.distributed")
    distributed.init_process_group(
        options.backend,
        init_method=f"tcp://{options.master}",
        rank=options.rank,
        world_size=options.world_size,
        timeout=datetime.timedelta(seconds=RENDEZVOUS_SECONDS),
    )
    _say("joined", world_size=options.world_size)
    results = {}
    for size in (SMALL_BYTES, LARGE_BYTES):
        values = torch.ones(size // 4, device=device, dtype=torch.float32)
        seconds = []
        for _round in range(_WARM_UP + _ROUNDS):
            values.fill_(1)
            if device == "cuda":
                torch.cuda.synchronize()
            distributed.barrier()
            started = time.perf_counter()
            distributed.all_reduce(values)
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        if not bool((values == options.world_size).all().item()):
            raise ArithmeticError(f"the sum of ones over {options.world_size} ranks is wrong")
        results[size] = min(seconds[_WARM_UP:])
    # What each rank sends and receives for one byte of the message in a ring (nccl-tests, doc/PERFORMANCE.md).
    factor = 2 * (options.world_size - 1) / options.world_size
    _say(
        "all_reduce",
        bytes=LARGE_BYTES,
        bus_gbps=round(LARGE_BYTES * 8 * factor / results[LARGE_BYTES] / 1e9, 2),
        small_us=round(results[SMALL_BYTES] * 1e6, 1),
    )
    distributed.destroy_process_group()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=["nccl", "gloo"], required=True)
    parser.add_argument("--data-type", default="bf16")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--reasoning", default="")
    parser.add_argument("--tool-call", default="")
    options = parser.parse_args(argv)
    step = "import"
    try:
        torch = importlib.import_module("torch")
        step = "device"
        device = _device(torch, options.backend)
        step = "product"
        _multiply(torch, device, options.data_type)
        if options.world_size > 1:
            step = "all_reduce"
            _all_reduce(torch, device, options)
        step = "parser"
        wanted = {"reasoning": options.reasoning, "tool_call": options.tool_call}
        _parsers({kind: name for kind, name in wanted.items() if name})
    except Exception as error:  # Whatever it is, it is the answer.
        import traceback

        traceback.print_exc()
        _say("failed", at=step, error=f"{type(error).__name__}: {error}"[:2000])
        return 1
    _say("done")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Threads of NCCL and of CUDA may hang in an ordinary exit after a failure.
    os._exit(code)
