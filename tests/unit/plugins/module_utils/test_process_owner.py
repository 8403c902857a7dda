# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import parse_cgroup

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", ("", "")),
        ("0::/init.scope", ("", "")),
        ("0::/system.slice/ssh.service", ("", "ssh.service")),
        (f"0::/system.slice/docker-{ID}.scope", (ID, "")),
        (f"12:pids:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service", (ID, "")),
        (f"12:pids:/docker/{OTHER}/docker/{ID}", (ID, "")),
        (f"0::/machine.slice/libpod-{ID}.scope/container", (ID, "")),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", (ID, "")),
        (f"4:memory:/docker/{OTHER}/system.slice/train.service", (OTHER, "train.service")),
        ("0::/user.slice/user-1000.slice/session-3.scope", ("", "")),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service", ("", "")),
        ("0::/system.slice/vllm.service/worker.scope", ("", "vllm.service")),
    ],
)
def test_parse_cgroup(text: str, expected: tuple[str, str]) -> None:
    assert parse_cgroup(text) == expected
