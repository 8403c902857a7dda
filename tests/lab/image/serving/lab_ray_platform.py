"""vLLM platform plugin of the lab: the CPU platform, made acceptable to the Ray executor of a GPU cluster."""

from __future__ import annotations

from typing import Any


def register() -> str:
    return "lab_ray_platform.LabPlatform"


def __getattr__(name: str) -> Any:
    # The classes are made when first asked for: vLLM imports its plugins while it is itself half imported.
    makers = {"LabPlatform": _make_platform, "LabCommunicator": _make_communicator}
    if name not in makers:
        raise AttributeError(name)
    value = makers[name]()
    value.__qualname__ = name
    globals()[name] = value
    return value


def _make_platform() -> type:
    from vllm.platforms.cpu import CpuPlatform

    class LabPlatform(CpuPlatform):
        # The nodes of a Spark cluster offer Ray GPUs, so this is what a rank asks for.
        ray_device_key = "GPU"

        @classmethod
        def get_device_communicator_cls(cls) -> str:
            return "lab_ray_platform.LabCommunicator"

    return LabPlatform


def _make_communicator() -> type:
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    class LabCommunicator(CpuCommunicator):
        def _all_group_ranks_share_shm_group_name(self) -> bool:
            return False  # shared memory reaches one host only; the ranks are on two

    return LabCommunicator
