# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What stands beside the failure in the logs, and in outputs of tools that are given with them.

PRIVATE to this collection. Tools: ray status, ray list nodes, docker inspect, systemctl show, df, ss, pip list, collect_env.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ADDRESS = r"\d+\.\d+\.\d+\.\d+"
_RAY_GPUS = re.compile(r"^[ \t]*[\d.]+/([\d.]+) GPU\b", re.MULTILINE)
# Addresses at which Ray has nodes. The engine's own wish ('node:ADDRESS' in specs or demands) is not one.
_RAY_ADDRESSES = (
    re.compile(rf"existing Ray cluster at address: ({ADDRESS})"),
    re.compile(rf"Local node IP: ({ADDRESS})"),
    re.compile(rf"\"node_ip\": \"({ADDRESS})\""),
    re.compile(rf"'NodeManagerAddress': '({ADDRESS})'"),
    re.compile(rf"\(\w+(?: pid=\d+)?, ip=({ADDRESS})\)"),
)
_RESTARTS = re.compile(r"\"RestartCount\": *(\d+)")
_RESTART_POLICY = re.compile(r"\"RestartPolicy\": *\{[^}]*\"Name\": *\"([\w-]+)\"")
_SHM = re.compile(r"^\S+ +(\S+) +(\S+) +\S+ +\d+% +/dev/shm$", re.MULTILINE)
_LISTENER = re.compile(r"^LISTEN\s.*?:(\d+)\s+\S+\s+users:\(\(\"([^\"]+)\",pid=(\d+)", re.MULTILINE)
_TORCH = re.compile(r"\btorch(?:==|\", \"version\": \")(\d[\w.+]*)")
_CUDA_ARCHS = re.compile(r"CUDA Archs: *([^;\n]+)")
_EXIT_STATUS = re.compile(r"^ExecMainStatus=(\d+)$", re.MULTILINE)
_UNIT_RESTARTS = re.compile(r"^NRestarts=(\d+)$", re.MULTILINE)
_CAPTURED = re.compile(r"[Cc]aptur(?:ing|e)\b.*?(\d+)/(\d+) \[")
# Values of the engine, as vLLM prints them at its start, as the old dump of its configuration has them, and of SGLang.
_SETTINGS: Mapping[str, re.Pattern[str]] = {
    "utilization": re.compile(r"['\"]?(?:gpu_memory_utilization|mem_fraction_static)['\"]?[:=] ?([\d.]+)"),
    "max_model_len": re.compile(r"['\"]?(?:max_model_len|max_seq_len|context_length)['\"]?[:=] ?(\d+)"),
    "max_num_seqs": re.compile(r"['\"]?(?:max_num_seqs|max_running_requests)['\"]?[:=] ?(\d+)"),
    "max_num_batched_tokens": re.compile(r"['\"]?max_num_batched_tokens['\"]?[:=] ?(\d+)"),
    "enforce_eager": re.compile(r"['\"]?(?:enforce_eager|disable_cuda_graph)['\"]?[:=] ?(True|False)"),
    "port": re.compile(r"['\"]port['\"]: ?(\d+)|\bport=(\d+)"),
}
_SETTING_LINES = re.compile(
    r"non-default args|server_args=ServerArgs|Initializing an? .*LLM engine|gpu memory utilization"
)
_KEY_PRINTED = re.compile(r"['\"]?api_key['\"]?[:=] ?\[?['\"](?!\*|<|None|REDACTED)([^'\"]{4,})['\"]")
# vLLM and SGLang listen here unless told otherwise.
DEFAULT_PORTS = {"vllm": 8000, "sglang": 30000}


@dataclass(frozen=True)
class Facts:
    """settings: values of the engine under the names of a preset; captured: graphs done and wanted; key_printed: the line of
    the log that shows the API's key."""

    settings: dict[str, Any] = field(default_factory=dict)
    ray_gpus: float | None = None
    ray_addresses: tuple[str, ...] = ()
    restart_count: int | None = None
    restart_policy: str = ""
    shm: tuple[str, str] | None = None
    listeners: dict[int, tuple[str, int]] = field(default_factory=dict)
    torch: str = ""
    cuda_archs: str = ""
    exit_status: int | None = None
    unit_restarts: int | None = None
    captured: tuple[int, int] | None = None
    engine: str = "vllm"
    key_printed: str = ""


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _last_pair(pattern: re.Pattern[str], text: str) -> tuple[str, str] | None:
    found = pattern.findall(text)
    return (found[-1][0], found[-1][1]) if found else None


def engine_settings(text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for line in text.splitlines():
        if not _SETTING_LINES.search(line):
            continue
        for name, pattern in _SETTINGS.items():
            found = pattern.search(line)
            if found:
                settings[name] = _value(next(group for group in found.groups() if group))
    return settings


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    return float(text) if "." in text else int(text)


def facts_of(texts: Sequence[str]) -> Facts:
    text = "\n".join(texts)
    gpus = _RAY_GPUS.findall(text)
    captured = _last_pair(_CAPTURED, text)
    restarts, status, unit_restarts = (_first(name, text) for name in (_RESTARTS, _EXIT_STATUS, _UNIT_RESTARTS))
    return Facts(
        settings=engine_settings(text),
        ray_gpus=float(gpus[-1]) if gpus else None,
        ray_addresses=tuple(sorted({address for pattern in _RAY_ADDRESSES for address in pattern.findall(text)})),
        restart_count=int(restarts) if restarts else None,
        restart_policy=_first(_RESTART_POLICY, text),
        shm=_last_pair(_SHM, text),
        listeners={int(port): (name, int(pid)) for port, name, pid in _LISTENER.findall(text)},
        torch=_first(_TORCH, text),
        cuda_archs=_first(_CUDA_ARCHS, text).strip(),
        exit_status=int(status) if status else None,
        unit_restarts=int(unit_restarts) if unit_restarts else None,
        captured=(int(captured[0]), int(captured[1])) if captured else None,
        engine="sglang" if re.search(r"server_args=|sglang", text) else "vllm",
        key_printed=next((line for line in text.splitlines() if _KEY_PRINTED.search(line)), ""),
    )


_SECRETS = (
    (_KEY_PRINTED, 1),
    (re.compile(r"\b(hf_[A-Za-z0-9]{16,})"), 1),
    (re.compile(r"(?:VLLM_API_KEY|HF_TOKEN|RAY_AUTH_TOKEN|HUGGING_FACE_HUB_TOKEN)=(\S+)"), 1),
    (re.compile(r"--api-key[ =](\S+)"), 1),
    (re.compile(r"[Bb]earer ([\w.~+/=-]{8,})"), 1),
)


def without_secrets(line: str) -> str:
    """The line as it is, but for keys and tokens."""
    for pattern, group in _SECRETS:
        line = pattern.sub(lambda found, group=group: found[0].replace(found[group], "***"), line)  # type: ignore[misc]
    return line
