# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the plan needs of one host: ports, folders, images, and a way to the other hosts.

PRIVATE to this collection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._plan import GB, GIB
from ansible_collections.dgxspark.serving.plugins.module_utils._port_probe import Probe
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import MANAGED_UNITS

# One of the ports that the kernel picks (32768 to 60999 by default): Gloo, NCCL's bootstrap and torch's rendezvous use such.
PICKED_BY_KERNEL = 50999


@dataclass(frozen=True)
class Needs:
    """C(ports): must be free or held by what makes room; C(paths): name to path whose disk is measured; C(needed_gib): by name.

    C(stop), C(keep): the user's lists of a planned teardown; C(stop) is None where none is planned.
    """

    ports: tuple[int, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    needed_gib: Mapping[str, float] = field(default_factory=dict)
    units: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    probe: Probe | None = None
    stop: Mapping[str, Sequence[str]] | None = None
    keep: Mapping[str, Sequence[str]] = field(default_factory=dict)
    end_orphans: bool = False
    firewall: bool = False


def _span(bounds: Sequence[int]) -> range:
    return range(int(bounds[0]), int(bounds[1]) + 1)


def needed_ports(plan: Mapping[str, Any], host: Mapping[str, Any]) -> tuple[int, ...]:
    """Every TCP port that Ray, the engine and the copies of gate 4 open on C(host)."""
    ports = plan["ports"]
    needed = [
        *_span(ports["ray_workers"]),
        *_span(ports["ray_agents"]),
        ports["ray_node_manager"],
        ports["ray_object_manager"],
        ports["ray_runtime_env_agent"],
    ]
    if host["role"] == "head":
        needed += [ports["ray"], plan["api"]["port"], ports["trial"], *ports["staging"].values()]
    return tuple(sorted({int(port) for port in needed}))


def fabric_ports(plan: Mapping[str, Any], host: Mapping[str, Any]) -> tuple[int, ...]:
    """The ports of C(host) to which other hosts connect, one of each kind."""
    ports = plan["ports"]
    spoken_to = [ports["ray_workers"][0], ports["ray_node_manager"], ports["ray_object_manager"], PICKED_BY_KERNEL]
    if host["role"] == "head":
        spoken_to += [ports["ray"], ports["trial"], *ports["staging"].values()]
    return tuple(sorted({int(port) for port in spoken_to}))


def needs_of(plan: Mapping[str, Any]) -> Needs:
    """What C(plan), the result of M(dgxspark.serving.deployment_plan) for one host, needs of it."""
    own = plan["host"]
    peers = {
        str(host["control_address"]): fabric_ports(plan, host)
        for host in plan["hosts"]
        if host["name"] != own["name"] and host["control_address"]
    }
    return Needs(
        ports=needed_ports(plan, own),
        paths={"model": str(plan["model"]["folder"])},
        needed_gib={"model": round(float(plan["model"]["weights_gb"]) * GB / GIB, 3)},
        units=(*plan["stop"]["units"], *plan["keep"]["units"], *MANAGED_UNITS),
        images=tuple(str(candidate["image"]) for candidate in plan["candidates"]),
        stop=plan["stop"],
        keep=plan["keep"],
        firewall=bool(plan.get("firewall")),
        end_orphans=plan["unlisted_holders"] == "stop",
        probe=Probe(str(own["control_address"]), fabric_ports(plan, own), peers) if peers else None,
    )
