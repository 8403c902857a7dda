# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether Docker can give GPU, RDMA devices, locked and shared memory to a container.

PRIVATE to this collection.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING, Finding

# Where CDI specifications are (container-device-interface, SPEC.md).
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
# What docker run --gpus starts (moby, daemon/nvidia_linux.go).
_HOOK = "nvidia-container-runtime-hook"
# Of /dev/shm, which the containers share with the host (--ipc host): less is certainly too little. NVIDIA's own images ask for 1 GiB
# (--shm-size=1g); the 64 MiB that containers have make NCCL and Ray fail late. A Spark has half of its memory there.
LEAST_SHARED_MEMORY_GIB = 1.0
SHARED_MEMORY = "/dev/shm"
_TOOLKIT = "Install the NVIDIA Container Toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker."


@dataclass(frozen=True)
class ContainerWishes:
    """Arguments with which the engine's container will be started. Empty lists: nothing of the kind is asked for."""

    gpu_arguments: Sequence[str] = ()
    devices: Sequence[str] = ()
    ulimits: Sequence[str] = ()


def cdi_specifications(folders: Sequence[str] = CDI_FOLDERS) -> list[str]:
    """Files that describe NVIDIA devices to container engines."""
    found = [path for folder in folders for path in glob.glob(f"{folder}/*nvidia*")]
    return sorted(path for path in found if path.endswith((".yaml", ".yml", ".json")))


def judge_gpu_runtime(
    subject: str,
    arguments: Sequence[str],
    docker: Mapping[str, Any],
    specifications: Sequence[str],
    which: Callable[[str], str | None] = shutil.which,
) -> list[Finding]:
    """C(docker): as host_survey returns it. Nothing is asked for on hosts whose containers get no GPU, as in a lab."""
    text = " ".join(arguments)
    if not text or not docker:
        return []
    registered = "nvidia" in docker.get("runtimes", ())
    if "nvidia.com/gpu" in text:
        missing = "" if specifications else f"there is no CDI specification of NVIDIA in {' or '.join(CDI_FOLDERS)}"
        remedy = "Make it: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml."
    elif "--runtime" in text:
        missing = "" if registered else "Docker has no runtime nvidia"
        remedy = _TOOLKIT
    else:
        missing = (
            ""
            if registered or specifications or which(_HOOK)
            else f"Docker has no runtime nvidia, and there is no {_HOOK}"
        )
        remedy = _TOOLKIT
    if not missing:
        return []
    return [
        Finding(
            "HOST.GPU_RUNTIME_MISSING",
            ERROR,
            subject,
            f"Containers would not get the GPU ({text}): {missing}.",
            remedy + " Where containers need no GPU, set ray_cluster_gpu_arguments to an empty list.",
            f"runtimes: {', '.join(docker.get('runtimes', ())) or 'none'}",
        )
    ]


def judge_devices(
    subject: str, wishes: ContainerWishes, exists: Callable[[str], bool] = os.path.exists
) -> list[Finding]:
    findings = [
        Finding(
            "HOST.DEVICE_MISSING",
            ERROR,
            subject,
            f"{path} is to be given to the containers, and this host does not have it.",
            "Load the drivers (modprobe ib_uverbs mlx5_ib), or take it out of ray_cluster_devices.",
        )
        for path in (device.split(":")[0] for device in wishes.devices)
        if not exists(path)
    ]
    lifted = any(limit.replace(" ", "") in ("memlock=-1", "memlock=-1:-1") for limit in wishes.ulimits)
    if any("infiniband" in device for device in wishes.devices) and not lifted:
        findings.append(
            Finding(
                "HOST.MEMLOCK_LIMITED",
                WARNING,
                subject,
                "The containers get RDMA devices, but memory cannot be locked without a limit in them: registration will fail.",
                "Add memlock=-1 to ray_cluster_ulimits.",
                f"ulimits: {', '.join(wishes.ulimits) or 'none'}",
            )
        )
    return findings


def judge_shared_memory(subject: str, total_gib: float) -> list[Finding]:
    """C(total_gib): size of the host's /dev/shm."""
    if total_gib >= LEAST_SHARED_MEMORY_GIB:
        return []
    return [
        Finding(
            "HOST.SHARED_MEMORY_SMALL",
            ERROR,
            subject,
            f"{SHARED_MEMORY} has {total_gib:.3g} GiB; Ray and NCCL need {LEAST_SHARED_MEMORY_GIB:.3g} GiB of it or more.",
            f"mount -o remount,size=50% {SHARED_MEMORY}, and the same size in /etc/fstab if it is set there.",
        )
    ]
