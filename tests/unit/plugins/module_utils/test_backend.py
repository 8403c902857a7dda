# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What differs between Ray and vLLM's own way, and the units that come of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest
from ansible_collections.dgxspark.serving.plugins.filter.compile_cache import compile_cache_volume
from ansible_collections.dgxspark.serving.plugins.filter.systemd_arguments import systemd_arguments
from ansible_collections.dgxspark.serving.plugins.module_utils._backend import (
    backend_arguments,
    backend_ports,
    joined_ports,
    opened_ports,
    rank_arguments,
    with_backend,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_command import engine_command
from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import closed_ports
from ansible_collections.dgxspark.serving.plugins.module_utils._host_needs import fabric_ports, needed_ports

ROLES = Path(__file__).parents[4] / "roles"


def plan(backend: str, rank: int = 0, hosts: int = 2) -> dict[str, Any]:
    every = [
        {
            "name": f"spark-{number}",
            "role": "worker" if number else "head",
            "rank": number,
            "control_address": f"192.168.200.{12 + number}",
        }
        for number in range(hosts)
    ]
    made = {
        "preset": "p",
        "backend": backend,
        "hosts": every,
        "host": every[rank],
        "ports": {**backend_ports(backend), "trial": 20112, "staging": {"image": 20110}},
        "api": {"port": 8000},
        "firewall": True,
        "open_ports": [],
        "model": {"folder": "/srv/models/m"},
        "engine_arguments": ["--port", "8000"],
    }
    return with_backend(made, {})


def test_the_image_decides_where_the_user_does_not():
    with_ray = {"image": "i", "versions": {"ray": "2.60.0"}}
    assert with_backend(plan("auto"), {})["backend"] == "auto"
    assert with_backend(plan("auto"), with_ray)["backend"] == "ray"
    assert with_backend(plan("auto"), {"image": "i", "versions": {"ray": None}})["backend"] == "mp"
    # What the selection says goes first: a candidate may allow only one.
    assert with_backend(plan("auto"), {**with_ray, "backend": "mp"})["backend"] == "mp"
    assert with_backend(plan("mp"), with_ray)["backend"] == "mp"


def test_the_arguments_that_were_measured():
    assert backend_arguments(plan("ray")) == ["--distributed-executor-backend", "ray"]
    common = (
        "--distributed-executor-backend mp --nnodes 2 --node-rank {} --master-addr 192.168.200.12 --master-port 20120"
    )
    assert backend_arguments(plan("mp")) == common.format(0).split()
    assert backend_arguments(plan("mp", rank=1)) == [*common.format(1).split(), "--headless"]
    assert backend_arguments(plan("mp", hosts=1)) == ["--distributed-executor-backend", "mp"]


def test_where_the_ranks_hold_on_to_each_other():
    assert rank_arguments(plan("mp", hosts=3)) == (
        ["--gather", "192.168.200.12:20121", "--rank", "192.168.200.13", "--rank", "192.168.200.14"]
    )
    assert rank_arguments(plan("mp", rank=1)) == ["--join", "192.168.200.12:20121", "--own", "192.168.200.13"]
    assert rank_arguments(plan("mp", hosts=1)) == []


@pytest.mark.parametrize(
    ("backend", "head", "worker"),
    [
        ("ray", set(range(20000, 20105)) | {6379, 8000, 20112, 20110}, set(range(20000, 20105))),
        ("mp", {20120, 20121, 8000, 20112, 20110}, set()),
        ("auto", set(range(20000, 20105)) | {6379, 20120, 20121, 8000, 20112, 20110}, set(range(20000, 20105))),
    ],
)
def test_ports_that_must_be_free(backend, head, worker):
    assert set(needed_ports(plan(backend), plan(backend)["hosts"][0])) == head
    assert set(needed_ports(plan(backend), plan(backend)["hosts"][1])) == worker


def test_ports_between_the_hosts_are_tried_and_closed_to_others():
    made = plan("mp")
    assert {20120, 20121} <= set(fabric_ports(made, made["hosts"][0]))
    assert (20120, 20121) in closed_ports(made)
    assert opened_ports(made["ports"], False) == joined_ports(made["ports"], False) == []


def unit(made: dict[str, Any], name: str = "dgxspark-vllm.service.j2", **more: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "dgxspark.serving.systemd_arguments": systemd_arguments,
        "dgxspark.serving.compile_cache_volume": compile_cache_volume,
        "dgxspark.serving.engine_command": engine_command,
        "dgxspark.serving.rank_arguments": rank_arguments,
        "regex_replace": lambda text, _pattern, prefix: prefix + text,
    }
    values = {
        "vllm_serve_plan": made,
        "_vllm_serve_is_head": made["host"]["role"] == "head",
        "_vllm_serve_changes": {},
        "_vllm_serve_nodes": ["192.168.200.12=1"],
        "vllm_serve_capabilities": ["IPC_LOCK"],
        "vllm_serve_image_id": "sha256:1",
        "vllm_serve_nft": "/usr/sbin/nft",
        "vllm_serve_stop_seconds": 20,
        "vllm_serve_compile_cache": "/var/lib/dgxspark/cache/compile/0123",
        **{f"vllm_serve_{name}": [] for name in ("arguments", "devices", "gpu_arguments", "ulimits")},
        **more,
    }
    text = (ROLES / "vllm_serve" / "templates" / name).read_text(encoding="utf-8")
    return environment.from_string(text).render(values)


def test_the_unit_over_ray():
    text = unit(plan("ray"))
    assert "BindsTo=dgxspark-ray.service" in text and "dgxspark-await-ray.pyz" in text
    assert "--network container:dgxspark-ray --pid container:dgxspark-ray --ipc host" in text
    assert "--env-file /etc/dgxspark/ray.env --env RAY_ADDRESS=192.168.200.12:6379" in text
    assert "mp-rank" not in text and "\n\n\n" not in text and "ExecStopPost" not in text
    assert '"/srv/models/m" "--distributed-executor-backend" "ray" "--port" "8000"' in text


@pytest.mark.parametrize(("rank", "has_key"), [(0, True), (1, False)])
def test_the_unit_without_ray(rank, has_key):
    text = unit(plan("mp", rank=rank))
    assert "ray" not in text.replace("array", "")
    assert f"--label io.dgxspark.serving.rank={rank}" in text and "--label io.dgxspark.serving.role=engine" in text
    assert "--network host --ipc host" in text and "--cap-drop ALL --security-opt no-new-privileges" in text
    assert "--env-file /etc/dgxspark/engine.env" in text
    assert ("api-key" in text) is has_key and ('"--headless"' in text) is not has_key
    assert '"/opt/dgxspark/lib/dgxspark-mp-rank.pyz"' in text and '"--" /usr/bin/docker run --rm --init --name' in text
    assert "nft list chain inet dgxspark input >/dev/null || /usr/sbin/nft -f /etc/dgxspark/firewall.nft'" in text
    # Every line of the command but the last goes on.
    command = text.partition("ExecStart=/")[2].partition("ExecStop")[0].strip().splitlines()
    assert all(
        line.endswith("\\")
        for line in command
        if not line.startswith("#") and line != command[-1] and "serve" not in line
    )


def test_one_host_without_ray_needs_no_others():
    text = unit(plan("mp", hosts=1))
    assert "ExecStart=/usr/bin/docker run" in text and "mp-rank" not in text


def test_only_the_head_has_a_limit_of_restarts():
    more = {"vllm_serve_wait": {"seconds": 60.0}, "vllm_serve_restarts": 3, "vllm_serve_restart_seconds": 10}
    head, worker = (unit(plan("mp", rank=rank), "accepted.conf.j2", **more) for rank in (0, 1))
    assert "StartLimitBurst=3" in head and "StartLimitIntervalSec=420" in head
    assert "StartLimitBurst" not in worker and "StartLimitIntervalSec=0" in worker
    assert "Restart=always" in head and "Restart=always" in worker
