# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the ranks of a deployment are brought together: C(ray), or C(mp), the engine's own way over several hosts that needs no Ray.

Everything that differs between the two is here: ports, arguments of the engine, the file of its environment. C(auto) takes Ray
where the chosen image has it, and is C(ray) or C(mp) from the image selection on.

PRIVATE to this collection. Plain values in, plain values out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RAY, MP, AUTO = "ray", "mp", "auto"
BACKENDS = (RAY, MP, AUTO)

# Ray's GCS port is Ray's own default. The worker ports are pinned to a small range so that a firewall can name them;
# 100 is more than the 48 a Spark's 20 cores and one GPU can start at once.
# Further ports of each Ray node; without them Ray picks random ones.
RAY_PORTS: Mapping[str, Any] = {
    "ray": 6379,
    "ray_workers": (20000, 20099),
    "ray_node_manager": 20100,
    "ray_object_manager": 20101,
    "ray_runtime_env_agent": 20102,
    "ray_agents": (20103, 20104),
}
# On the head: torch's store, at which the ranks meet (vLLM's own default, 29501, is a port that others use, too), and the place
# where the ranks' own programs hold on to each other (_mp_rank).
MP_PORTS: Mapping[str, Any] = {"mp_master": 20120, "mp_ranks": 20121}

# A file for each, so that a change of the backend is seen.
ENVIRONMENT_FILES = {RAY: "/etc/dgxspark/ray.env", MP: "/etc/dgxspark/engine.env"}


def backend_ports(backend: str) -> dict[str, Any]:
    """The ports of a plan that belong to the backend. Both as long as it is open."""
    ports = {**(RAY_PORTS if backend != MP else {}), **(MP_PORTS if backend != RAY else {})}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in ports.items()}


def _numbers(value: Any) -> list[int]:
    if isinstance(value, Sequence):
        return list(range(int(value[0]), int(value[-1]) + 1))
    return [int(value)]


def opened_ports(ports: Mapping[str, Any], is_head: bool) -> list[int]:
    """Every TCP port that the backend opens on a host."""
    names = ["ray_workers", "ray_agents", "ray_node_manager", "ray_object_manager", "ray_runtime_env_agent"]
    names += ["ray", *MP_PORTS] if is_head else []
    return [port for name in names if name in ports for port in _numbers(ports[name])]


def joined_ports(ports: Mapping[str, Any], is_head: bool) -> list[int]:
    """The ports of a host to which other hosts connect, one of each kind."""
    names = ["ray_workers", "ray_node_manager", "ray_object_manager"] + (["ray", *MP_PORTS] if is_head else [])
    return [_numbers(ports[name])[0] for name in names if name in ports]


def with_backend(plan: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with the backend with which the chosen image serves, and what follows from it.

    choice: result of image_selection, or empty before it. An C(auto) for which no image was chosen yet stays open.
    """
    backend = str(choice.get("backend") or plan["backend"])
    if backend == AUTO and choice.get("image"):
        backend = RAY if (choice.get("versions") or {}).get("ray") else MP
    return {
        **plan,
        "backend": backend,
        "environment_file": ENVIRONMENT_FILES[MP if backend == MP else RAY],
        "serving_engine": str(choice.get("engine") or "vllm"),
    }


def with_model(plan: Mapping[str, Any], location: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with the place where the head has the model. location: host_survey's C(model), or empty before it."""
    place = {name: location[name] for name in ("folder", "mount", "complete") if name in location}
    return {**plan, "model": {**plan["model"], **place}}


def backend_arguments(plan: Mapping[str, Any]) -> list[str]:
    """Arguments of C(vllm serve) on the host of this plan. All ranks get the same arguments otherwise."""
    if plan["backend"] != MP:
        return ["--distributed-executor-backend", RAY]
    arguments = ["--distributed-executor-backend", MP]
    if len(plan["hosts"]) > 1:
        head = next(host for host in plan["hosts"] if host["role"] == "head")
        arguments += [
            *("--nnodes", str(len(plan["hosts"]))),
            *("--node-rank", str(plan["host"]["rank"])),
            *("--master-addr", str(head["control_address"])),
            *("--master-port", str(plan["ports"]["mp_master"])),
        ]
    return arguments + ([] if plan["host"]["role"] == "head" else ["--headless"])


def rank_arguments(plan: Mapping[str, Any]) -> list[str]:
    """Arguments of C(dgxspark-mp-rank) on the host of this plan."""
    head = next(host for host in plan["hosts"] if host["role"] == "head")
    place = f"{head['control_address']}:{plan['ports']['mp_ranks']}"
    if plan["host"]["role"] != "head":
        return ["--join", place, "--own", str(plan["host"]["control_address"])]
    workers = [str(host["control_address"]) for host in plan["hosts"] if host["role"] != "head"]
    return ["--gather", place, *(word for address in workers for word in ("--rank", address))] if workers else []
