# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kernels and services of a host that are known to break a deployment.

PRIVATE to this collection.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._memory import parse_meminfo

# Kernels with kexec handover count contiguous memory wrongly: ibv_reg_mr fails with ENOMEM (open-gpu-kernel-modules 1358,
# spark-vllm-docker 389 and 392). 6.17 is fine; kho=off on the command line cures 7.0.
_KHO_KERNEL = re.compile(r"^7\.0\.")
_KHO_OFF = re.compile(r"(?:^|\s)kho=(?:off|0|n)(?:\s|$)")
# Services that end the process with most memory when little is available, which is the engine's normal state.
MEMORY_KILLERS = ("earlyoom.service", "systemd-oomd.service", "nohang.service")


def read_text(path: str) -> str:
    """The text of a small file, empty when it is not there or may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def operating_system(text: str) -> str:
    """C(PRETTY_NAME) of the text of C(/etc/os-release)."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', text, re.MULTILINE)
    return found[1] if found else ""


def judge_kernel(subject: str, release: str, command_line: str, meminfo: str) -> list[Finding]:
    if not _KHO_KERNEL.match(release) or _KHO_OFF.search(command_line):
        return []
    try:
        memory = parse_meminfo(meminfo)
    except ValueError:
        return []
    if not memory.broken_cma:
        return []
    return [
        Finding(
            "HOST.KERNEL_KNOWN_BAD",
            ERROR,
            subject,
            f"Kernel {release} was started without kho=off and counts its contiguous memory wrongly: NCCL will not be able to "
            "register memory with the RDMA devices, and up to 26 GiB are missing.",
            "Add kho=off to the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub, reboot), or boot 6.17.",
            f"CmaFree {memory.fields['CmaFree']:.2f} GiB > CmaTotal {memory.fields['CmaTotal']:.2f} GiB",
        )
    ]


def judge_killers(subject: str, units: Iterable[Mapping[str, Any]], steered: Collection[str] = ()) -> list[Finding]:
    """C(units): as host_survey returns them; C(steered): names of those that are known to choose the engine, and late."""
    return [
        Finding(
            "HOST.MEMORY_KILLER",
            WARNING,
            subject,
            f"{unit['name']} runs. It ends the process with most memory when little is available: the engine, while it loads.",
            f"Stop it for this use (sudo systemctl disable --now {unit['name']}), or exempt the engine in its configuration"
            + (" (spark_steer_earlyoom: true does it)." if unit["name"] == "earlyoom.service" else "."),
            f"{unit['name']} {unit['active']}",
        )
        for unit in units
        if unit["name"] in MEMORY_KILLERS and unit["active"] == "active" and unit["name"] not in steered
    ]


def removes_ipc(texts: Iterable[str]) -> bool:
    """Whether logind removes shared memory at the end of a session. C(texts): logind.conf and its drop-ins, in order."""
    setting = True
    for text in texts:
        for found in re.finditer(r"^\s*RemoveIPC\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE):
            setting = found[1].lower() in ("yes", "true", "1", "on")
    return setting


def judge_rootless(subject: str, rootless: bool, remove_ipc: bool) -> list[Finding]:
    """Root's processes are exempt from logind's removal: it hurts only where Docker runs as an ordinary user."""
    if not rootless:
        return []
    trap = (
        " logind also removes its shared memory when the user logs out (RemoveIPC=yes), and the ranks with it."
        if remove_ipc
        else ""
    )
    return [
        Finding(
            "HOST.DOCKER_ROOTLESS",
            ERROR,
            subject,
            "This Docker Engine runs without root: it cannot raise memlock or give RDMA devices to a container." + trap,
            "Use the system's Docker Engine (systemctl start docker); with a rootless one set RemoveIPC=no and enable-linger.",
        )
    ]
