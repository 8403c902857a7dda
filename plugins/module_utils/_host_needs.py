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

from ansible_collections.dgxspark.serving.plugins.module_utils._backend import joined_ports, opened_ports
from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import closed_ports
from ansible_collections.dgxspark.serving.plugins.module_utils._image_name import local_name
from ansible_collections.dgxspark.serving.plugins.module_utils._plan import GB, GIB
from ansible_collections.dgxspark.serving.plugins.module_utils._port_probe import Probe
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import MANAGED_UNITS

# One of the ports that the kernel picks (32768 to 60999 by default): Gloo, NCCL's bootstrap and torch's rendezvous use such.
PICKED_BY_KERNEL = 50999


@dataclass(frozen=True)
class Needs:
    """C(ports): must be free or held by what makes room; C(paths): name to path whose disk is measured; C(needed_gib): by name.

    C(repository): name of the model on the hub, where this host is to look for it in caches, too; None where it is not.
    C(closed): first and last of each range of ports that the firewall closes to all but the hosts.
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
    closed: tuple[tuple[int, int], ...] = ()
    repository: str | None = None


def needed_ports(plan: Mapping[str, Any], host: Mapping[str, Any]) -> tuple[int, ...]:
    """Every TCP port that the ranks, the API and the copies of gate 4 open on C(host)."""
    ports, is_head = plan["ports"], host["role"] == "head"
    needed = opened_ports(ports, is_head)
    if is_head:
        needed += [plan["api"]["port"], ports["trial"], *ports["staging"].values()]
    return tuple(sorted({int(port) for port in needed}))


def fabric_ports(plan: Mapping[str, Any], host: Mapping[str, Any]) -> tuple[int, ...]:
    """The ports of C(host) to which other hosts connect, one of each kind."""
    ports, is_head = plan["ports"], host["role"] == "head"
    spoken_to = [*joined_ports(ports, is_head), PICKED_BY_KERNEL]
    if is_head:
        spoken_to += [ports["trial"], *ports["staging"].values()]
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
        repository=str(plan["model"].get("repository") or "") if own["role"] == "head" else None,
        needed_gib={"model": round(float(plan["model"]["weights_gb"]) * GB / GIB, 3)},
        units=(*plan["stop"]["units"], *plan["keep"]["units"], *MANAGED_UNITS),
        images=tuple(dict.fromkeys(local_name(str(candidate["image"])) for candidate in plan["candidates"])),
        stop=plan["stop"],
        keep=plan["keep"],
        closed=tuple(closed_ports(plan)),
        end_orphans=plan["unlisted_holders"] == "stop",
        probe=Probe(str(own["control_address"]), fabric_ports(plan, own), peers) if peers else None,
    )
