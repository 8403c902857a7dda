# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The image's own Python is asked what its engine can serve.

PRIVATE to this collection. It runs without network and rights, with a root file system that cannot be written, for a limited
time and with limited memory, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _host_python as host_python
from ansible_collections.dgxspark.serving.plugins.module_utils._image_files import PROBE_LABEL, PROBE_LABEL_VALUE

if TYPE_CHECKING:
    from docker import APIClient

# vLLM with torch and CUDA takes 1 to 2 GB to import (0.32: 1.1).
_MEMORY_BYTES = 6 * 1024**3
# An inspection of models starts a process per model at most; threads of BLAS libraries count as well.
_MOST_PROCESSES = 1024
_SCRATCH_BYTES = 512 * 1024**2
_LOG_LIMIT = 1024**2
# 128 + SIGKILL. Docker does not always say that it was for the memory.
_KILLED = 137
_MARK = "dgxspark-registry-probe:"
_POLL_SECONDS = 0.1

# Runs in the image. Whatever an import prints goes elsewhere than the answer, which is one line.
_COMMON = """
import json, logging, sys
out = {"architectures": [], "failures": [], "gpu_archs": [], "gpu": ""}
try:
    import torch
    out["gpu_archs"] = list(torch.cuda.get_arch_list())
    if torch.cuda.is_available():
        out["gpu"] = "%d.%d" % torch.cuda.get_device_capability()
except Exception as error:
    out["failures"].append("torch: %r" % error)
"""
_VLLM = """
try:
    from vllm.plugins import load_general_plugins
    load_general_plugins()
except Exception as error:
    out["failures"].append("plugins: %r" % error)
from vllm import ModelRegistry
out["architectures"] = sorted(ModelRegistry.get_supported_archs())
"""
# It leaves out modules that cannot be imported, and says so in its log.
_SGLANG = """
class Noted(logging.Handler):
    def emit(self, record):
        if "import" in record.getMessage().lower():
            out["failures"].append(record.getMessage()[:300])
logging.getLogger().addHandler(Noted(logging.WARNING))
from sglang.srt.models.registry import ModelRegistry
out["architectures"] = sorted(ModelRegistry.get_supported_archs())
"""
_END = f"""
sys.stdout.write("\\n{_MARK}" + json.dumps(out) + "\\n")
"""
_PROGRAMS = {"vllm": _COMMON + _VLLM + _END, "sglang": _COMMON + _SGLANG + _END}


@dataclass
class Imported:
    """What the engine itself says. problem: why it says nothing; failures: modules that could not be imported."""

    architectures: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    gpu_archs: list[str] = field(default_factory=list)
    gpu: str = ""
    problem: str = ""
    evidence: str = ""


def ask_engine(client: APIClient, image_id: str, interpreter: str, engine: str, seconds: int) -> Imported:
    """Run the image's Python. Raises what the Docker SDK raises when the engine fails, never for what the image does."""
    for with_gpu in (True, False) if _has_gpu(client) else (False,):
        created = client.create_container(
            image_id,
            # Not the entrypoint of the image, which may do anything.
            entrypoint=[interpreter, "-c", _PROGRAMS[engine]],
            command=[],
            environment={
                "HOME": "/tmp",
                "XDG_CACHE_HOME": "/tmp",
                "PYTHONDONTWRITEBYTECODE": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_LOGGING_LEVEL": "ERROR",
            },
            working_dir="/tmp",
            healthcheck={"test": ["NONE"]},
            labels={PROBE_LABEL: PROBE_LABEL_VALUE},
            host_config=_host_config(client, with_gpu),
        )
        try:
            found = _run(client, created["Id"], seconds)
        finally:
            # v: with the anonymous volumes that the image declares.
            client.remove_container(created["Id"], v=True, force=True)
        if found is not None:
            return found
    return Imported(problem="the Docker Engine does not start a container of the image")


def _has_gpu(client: APIClient) -> bool:
    return "nvidia" in (client.info().get("Runtimes") or {})


def _host_config(client: APIClient, with_gpu: bool) -> Any:
    options: dict[str, Any] = {}
    if with_gpu:
        options["device_requests"] = [
            {"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu", "compute", "utility"]]}
        ]
    return client.create_host_config(
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": f"rw,nosuid,nodev,size={_SCRATCH_BYTES}"},
        mem_limit=_MEMORY_BYTES,
        memswap_limit=_MEMORY_BYTES,
        pids_limit=_MOST_PROCESSES,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        log_config={"type": "json-file", "config": {"max-size": "1m"}},
        **options,
    )


def _run(client: APIClient, container: str, seconds: int) -> Imported | None:
    """None: it did not start."""
    try:
        client.start(container)
    except host_python.engine_error() as error:
        if "not found" in str(error) or "no such file" in str(error):
            return Imported(problem="its Python does not start", evidence=str(error)[:300])
        return None
    deadline = time.monotonic() + seconds
    state = client.inspect_container(container)["State"]
    while state["Running"]:
        if time.monotonic() > deadline:
            return Imported(problem=f"it was not done after {seconds} s", evidence=_last_line(_log(client, container)))
        time.sleep(_POLL_SECONDS)
        state = client.inspect_container(container)["State"]
    log = _log(client, container)
    for line in log.splitlines():
        if line.startswith(_MARK):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return _answer(json.loads(line.removeprefix(_MARK)))
    problem = f"it ended with status {state['ExitCode']}"
    if state.get("OOMKilled") or state["ExitCode"] == _KILLED:
        problem = f"it was killed, as when it needs more than {_MEMORY_BYTES // 1024**3} GiB of memory"
    return Imported(problem=problem, evidence=_last_line(log))


def _answer(said: dict[str, Any]) -> Imported:
    """What the image says is taken as texts, whatever it is."""
    architectures, failures, gpu_archs = (
        [str(item) for item in said[name]] for name in ("architectures", "failures", "gpu_archs")
    )
    return Imported(architectures, failures, gpu_archs, str(said["gpu"]))


def _log(client: APIClient, container: str) -> str:
    log: bytes = client.logs(container, stdout=True, stderr=True, tail=200)
    return log[-_LOG_LIMIT:].decode(errors="replace")


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
