# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVML and nvidia-smi give the same results. fixtures/h200/seen and hidden are answers of both at one moment on a real H200."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _gpu_query, _nvml
from ansible_collections.dgxspark.serving.plugins.modules import gpu_memory_check

H200 = Path(__file__).parents[2] / "fixtures" / "h200"
MIB_PER_GIB = 1024
MEMINFO = "MemTotal: 131981020 kB\nMemFree: 129123836 kB\nMemAvailable: 131031280 kB\nShmem: 2097152 kB\n"
# Replays files; the first option tells which.
REPLAY = """\
#!/bin/sh
case "$1" in
    --query-gpu=*) cat {folder}/gpus.csv ;;
    --query-compute-apps=*) cat {folder}/processes.csv ;;
    *) cat {folder}/table.txt ;;
esac
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "sys/vm").mkdir(parents=True)
    (folder / "meminfo").write_text(MEMINFO)
    for pid in (414, 415):
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "status").write_text(f"Name:\tpython3\nPPid:\t1\nUid:\t{pid}\t0\t0\t0\n")
        (folder / str(pid) / "cmdline").write_text("python3\0hold.py\0")
        (folder / str(pid) / "cgroup").write_text("0::/\n")
    return folder


def from_nvidia_smi(run_module: Any, proc: Path, folder: Path) -> dict[str, Any]:
    program = proc.parent / "nvidia-smi"
    program.write_text(REPLAY.format(folder=folder))
    program.chmod(0o755)
    found: dict[str, Any] = run_module(gpu_memory_check, proc_root=str(proc), nvidia_smi=str(program))
    return found


def from_nvml(run_module: Any, proc: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    answer = json.loads((folder / "nvml.json").read_text())
    monkeypatch.setattr(_nvml, "read_nvml", lambda: answer)
    found: dict[str, Any] = run_module(gpu_memory_check, proc_root=str(proc))
    return found


@pytest.mark.parametrize("moment", ["seen", "hidden"])
def test_both_sources_give_the_same_results(run_module, proc, monkeypatch, moment):
    smi = from_nvidia_smi(run_module, proc, H200 / moment)
    nvml = from_nvml(run_module, proc, H200 / moment, monkeypatch)
    assert (smi.pop("source"), nvml.pop("source")) == ("nvidia-smi", "nvml")
    for result in (smi, nvml):
        # What was asked differs: the program's path.
        result.pop("invocation", None)
        # A clock says it, and the machine may be busy.
        result.pop("waited_seconds")
    assert nvml == smi


def test_results_are_those_of_nvidia_smi_to_the_mib(run_module, proc):
    found = from_nvidia_smi(run_module, proc, H200 / "seen")
    (gpu,) = found["gpus"]
    # The figures of gpus.csv and processes.csv.
    assert gpu["total_gib"] == round(143771 / MIB_PER_GIB, 3)
    assert gpu["used_gib"] == round(22765 / MIB_PER_GIB, 3)
    assert gpu["free_gib"] == round(120392 / MIB_PER_GIB, 3)
    assert [(holder["pid"], holder["used_gib"]) for holder in found["holders"]] == [
        (414, round(20998 / MIB_PER_GIB, 3)),
        (415, round(1752 / MIB_PER_GIB, 3)),
    ]
    assert found["unattributed_gib"] == round((22765 - 20998 - 1752) / MIB_PER_GIB, 3)
    assert found["memory"]["shared_gib"] == 2.0


def test_memory_of_processes_that_are_hidden_is_not_free(run_module, proc, monkeypatch):
    found = from_nvml(run_module, proc, H200 / "hidden", monkeypatch)
    assert found["holders"] == []
    assert found["unattributed_gib"] == round(22765 / MIB_PER_GIB, 3)
    assert "MEMORY.HOLDER_INVISIBLE" in [finding["id"] for finding in found["findings"]]


def test_nvml_that_hangs_is_a_finding(run_module, proc, monkeypatch):
    monkeypatch.setattr(_nvml, "read_nvml", lambda: time.sleep(60))
    began = time.monotonic()
    found = run_module(gpu_memory_check, proc_root=str(proc), timeout=0.3)
    assert time.monotonic() - began < 10
    assert [finding["id"] for finding in found["findings"]] == ["MEMORY.NVIDIA_SMI_HANGS"]
    assert "NVML did not answer" in found["findings"][0]["message"]


def test_nvml_with_an_error_leaves_it_to_nvidia_smi(monkeypatch):
    def broken() -> dict[str, Any]:
        raise _nvml.NvmlUnavailable("Driver/library version mismatch")

    monkeypatch.setattr(_nvml, "read_nvml", broken)
    look = _gpu_query.look_at_gpus("", "nvidia-smi", 5, ask_nvml=True)
    assert [finding.id for finding in look.findings] == ["MEMORY.NVIDIA_SMI_MISSING"]


class NVMLError(Exception):
    pass


class FakeNvml:
    """As much of pynvml as is asked: a GB10 without memory figures, and a GPU that is divided (MIG)."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028
    NVML_DEVICE_MIG_ENABLE = 1

    @staticmethod
    def nvmlInit() -> None:
        pass

    @staticmethod
    def nvmlSystemGetDriverVersion() -> bytes:
        return b"580.95.05"

    @staticmethod
    def nvmlDeviceGetCount() -> int:
        return 2

    @staticmethod
    def nvmlDeviceGetHandleByIndex(index: int) -> int:
        return index

    @staticmethod
    def nvmlDeviceGetMemoryInfo(handle: int, version: int) -> Any:
        if handle == 0:
            raise NVMLError("Not Supported")
        return SimpleNamespace(total=80 << 30, used=8 << 30, free=72 << 30)

    @staticmethod
    def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
        return SimpleNamespace(gpu=7)

    @staticmethod
    def nvmlDeviceGetCudaComputeCapability(handle: int) -> tuple[int, int]:
        return (12, 1) if handle == 0 else (9, 0)

    @staticmethod
    def nvmlDeviceGetUUID(handle: int) -> str:
        return f"GPU-{handle}"

    @staticmethod
    def nvmlDeviceGetName(handle: int) -> str:
        return "NVIDIA GB10" if handle == 0 else "NVIDIA H100"

    @staticmethod
    def nvmlDeviceGetMigMode(handle: int) -> list[int]:
        if handle == 0:
            raise NVMLError("Not Supported")
        return [1, 1]

    @staticmethod
    def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[Any]:
        return [SimpleNamespace(pid=414, usedGpuMemory=(handle + 1) << 30)]

    @staticmethod
    def nvmlDeviceGetGraphicsRunningProcesses(handle: int) -> list[Any]:
        return [SimpleNamespace(pid=500, usedGpuMemory=None)] if handle == 0 else []

    @staticmethod
    def nvmlSystemGetProcessName(pid: int) -> bytes:
        if pid == 500:
            raise NVMLError("Not Found")
        return b"VLLM::Worker"


def test_unified_divided_and_several_gpus(run_module, proc, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml)
    found = run_module(gpu_memory_check, proc_root=str(proc))
    assert found["source"] == "nvml"
    assert [(gpu["memory_model"], gpu["mig"], gpu["total_gib"]) for gpu in found["gpus"]] == [
        ("unified", False, 125.867),
        ("dedicated", True, 80.0),
    ]
    assert {holder["pid"]: (holder["gpus"], holder["used_gib"], holder["graphics"]) for holder in found["holders"]} == {
        414: ([0, 1], 3.0, False),
        500: ([0], None, True),
    }
    assert "MEMORY.MIG" in [finding["id"] for finding in found["findings"]]


@pytest.mark.parametrize(("driver", "found"), [("590.44.01", True), ("580.95.05", False), ("595.71.05", False)])
def test_driver_with_known_deadlocks(run_module, proc, monkeypatch, driver, found):
    monkeypatch.setattr(FakeNvml, "nvmlSystemGetDriverVersion", staticmethod(lambda: driver))
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml)
    ids = [finding["id"] for finding in run_module(gpu_memory_check, proc_root=str(proc))["findings"]]
    assert ("MEMORY.DRIVER_KNOWN_BAD" in ids) is found


@pytest.mark.parametrize(("kilobytes", "found"), [(6 << 20, True), (67584, False)])
def test_memory_that_the_kernel_keeps(run_module, proc, monkeypatch, kilobytes, found):
    (proc / "sys/vm/min_free_kbytes").write_text(f"{kilobytes}\n")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml)
    result = run_module(gpu_memory_check, proc_root=str(proc))
    assert result["memory"]["min_free_gib"] == round(kilobytes / 2**20, 3)
    assert ("MEMORY.MIN_FREE_LARGE" in [finding["id"] for finding in result["findings"]]) is found
