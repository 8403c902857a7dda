# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""GPUs and their processes as NVML tells them, through nvidia-ml-py where the host has it.

PRIVATE to this collection. The results are those of nvidia-smi, which asks NVML as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable
from time import monotonic
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._memory import MIB_PER_GIB, Gpu, GpuProcess

MIB = 1024**2
_CHUNK = 65536


class NvmlUnavailable(Exception):
    """There is no nvidia-ml-py, or NVML has an error of its own: nvidia-smi has the words for it."""


class NvmlHangs(Exception):
    """NVML gave no answer in time: the driver hangs."""


def _optional(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The answer of one NVML call; None where the GPU has no such figure, as a GB10 has none of its memory."""
    import pynvml

    try:
        return call(*arguments, **options)
    except pynvml.NVMLError:
        return None


def _text(value: Any) -> str:
    """Older versions of the bindings answer with bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _processes(nvml: Any, handle: Any, gpu: int) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for call, graphics in (
        (nvml.nvmlDeviceGetComputeRunningProcesses, False),
        (nvml.nvmlDeviceGetGraphicsRunningProcesses, True),
    ):
        for process in _optional(call, handle) or ():
            name = _text(_optional(nvml.nvmlSystemGetProcessName, process.pid))
            entry = {"pid": process.pid, "name": name, "used": process.usedGpuMemory, "gpu": gpu, "graphics": graphics}
            known = found.setdefault(process.pid, entry)
            known["graphics"] = known["graphics"] or graphics
    return list(found.values())


def read_nvml() -> dict[str, Any]:
    """Everything that is asked of NVML, as plain values. Sizes in bytes."""
    try:
        import pynvml as nvml
    except ImportError as error:
        raise NvmlUnavailable("nvidia-ml-py is not installed") from error
    try:
        nvml.nvmlInit()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        gpus: list[dict[str, Any]] = []
        processes: list[dict[str, Any]] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            # Version 2, as nvidia-smi: in version 1 what the driver reserves counts as used.
            memory = _optional(nvml.nvmlDeviceGetMemoryInfo, handle, version=nvml.nvmlMemory_v2)
            busy = _optional(nvml.nvmlDeviceGetUtilizationRates, handle)
            capability = _optional(nvml.nvmlDeviceGetCudaComputeCapability, handle)
            gpus.append(
                {
                    "index": index,
                    "uuid": _text(_optional(nvml.nvmlDeviceGetUUID, handle)),
                    "name": _text(_optional(nvml.nvmlDeviceGetName, handle)),
                    "capability": ".".join(map(str, capability)) if capability else "",
                    "memory": [memory.total, memory.used, memory.free] if memory else None,
                    "busy": busy.gpu if busy else None,
                    "mig": (_optional(nvml.nvmlDeviceGetMigMode, handle) or [0])[0] == nvml.NVML_DEVICE_MIG_ENABLE,
                    "driver": driver,
                }
            )
            processes += _processes(nvml, handle, index)
    except (nvml.NVMLError, AttributeError, TypeError) as error:
        # AttributeError, TypeError: bindings that are too old for what is asked.
        raise NvmlUnavailable(str(error)) from error
    return {"gpus": gpus, "processes": processes}


def in_time(read: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The answer of C(read), given by a child: a call into a driver that hangs cannot be ended from within.

    Raises NvmlHangs and, with the child's reason, NvmlUnavailable.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            try:
                answer: dict[str, Any] = {"answer": read()}
            except NvmlUnavailable as error:
                answer = {"unavailable": str(error)}
            with os.fdopen(writing, "w") as pipe:
                json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    deadline = monotonic() + seconds
    text = b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while True:
            ready, _writable, _failed = select.select([pipe], [], [], max(deadline - monotonic(), 0.0))
            if not ready:
                # It is not waited for: a process in a driver call (state D) cannot be killed.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                raise NvmlHangs
            chunk = pipe.read(_CHUNK)
            if not chunk:
                break
            text += chunk
    os.waitpid(child, 0)
    told: dict[str, Any] = json.loads(text or b'{"unavailable": "the reader of NVML ended without an answer"}')
    if "answer" not in told:
        raise NvmlUnavailable(told["unavailable"])
    answered: dict[str, Any] = told["answer"]
    return answered


def _gib(size: int | None) -> float | None:
    """nvidia-smi prints whole MiB, rounded up (H200, driver 580.159.04); the same here, so that both give the same results."""
    return None if size is None else -(-size // MIB) / MIB_PER_GIB


def gpus_of(answer: dict[str, Any]) -> list[Gpu]:
    found = []
    for gpu in answer["gpus"]:
        total, used, free = gpu["memory"] or (None, None, None)
        found.append(
            Gpu(
                index=gpu["index"],
                uuid=gpu["uuid"],
                name=gpu["name"],
                compute_capability=gpu["capability"],
                total_gib=_gib(total),
                used_gib=_gib(used),
                free_gib=_gib(free),
                busy_percent=gpu["busy"],
                mig=gpu["mig"],
                driver=gpu["driver"],
            )
        )
    return found


def processes_of(answer: dict[str, Any]) -> list[GpuProcess]:
    return [
        GpuProcess(entry["pid"], entry["name"], _gib(entry["used"]), str(entry["gpu"]), entry["graphics"])
        for entry in answer["processes"]
    ]
