# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hosts side by side: clocks, architecture, drivers, GPUs and room for the head's image.

PRIVATE to this collection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING, Finding

# Results by name of the host.
Results = Mapping[str, Mapping[str, Any]]

# Above it the logs of the ranks cannot be put in order. Ours: NTP keeps hosts of one network within 0.1 s.
CLOCKS_TELL_APART_SECONDS = 1.0
# Tokens and certificates are refused from here on (the usual tolerance, RFC 4120 says five minutes).
CLOCKS_REFUSED_SECONDS = 300.0
# Serving images for this hardware take 35 to 40 GB; used when no host knows the size of a candidate.
UNKNOWN_IMAGE_GIB = 40.0
# Below it a Docker Engine can write neither a container's layer nor its log.
DOCKER_MINIMUM_GIB = 1.0


def compare_clocks(probes: Results) -> list[Finding]:
    """C(probes): host to what its probe measured; the offsets are to the addresses of the others."""
    names = {str(probe["address"]): name for name, probe in probes.items()}
    findings = []
    for name, probe in probes.items():
        for address, offset in probe["clock_offsets"].items():
            other = names.get(address, address)
            # Each pair is measured from both ends and told once.
            if abs(offset) < CLOCKS_TELL_APART_SECONDS or (other in probes and other < name):
                continue
            ahead = other if offset > 0 else name
            findings.append(
                Finding(
                    "HOST.TIME_SKEW",
                    ERROR if abs(offset) >= CLOCKS_REFUSED_SECONDS else WARNING,
                    f"{name}, {other}",
                    f"Their clocks differ by {abs(offset):.1f} s, {ahead} is ahead.",
                    "Let both follow one time server (timedatectl set-ntp true); a worker without internet can take the head's.",
                )
            )
    return findings


def compare_systems(surveys: Results) -> list[Finding]:
    architectures = {name: str(survey["architecture"]) for name, survey in surveys.items()}
    if len(set(architectures.values())) < 2:
        return []
    return [
        Finding(
            "HOST.ARCHITECTURE_MIXED",
            ERROR,
            "all hosts",
            f"The hosts are of different architectures ({_told(architectures)}): one image cannot run on all of them.",
            "Take the hosts that differ out of the inventory.",
        )
    ]


def compare_gpus(hosts: Sequence[Mapping[str, Any]], memory: Results) -> list[Finding]:
    """C(memory): host to the result of gpu_memory_check. A host whose GPUs cannot be read at all says so elsewhere."""
    findings = []
    drivers = {}
    for host in hosts:
        gpus = memory.get(host["name"], {}).get("gpus") or []
        if not gpus:
            continue
        drivers[str(host["name"])] = str(gpus[0]["driver"])
        if len(gpus) != int(host["gpus"]):
            findings.append(
                Finding(
                    "HOST.GPU_COUNT",
                    ERROR,
                    host["name"],
                    f"{host['gpus']} GPU(s) are planned, nvidia-smi shows {len(gpus)}.",
                    "Look for a GPU that is lost (nvidia-smi -L, journalctl -k -g Xid); this collection plans one GPU a host.",
                    ", ".join(str(gpu["name"]) for gpu in gpus),
                )
            )
    if len(set(drivers.values())) > 1:
        findings.append(
            Finding(
                "HOST.DRIVER_MIXED",
                WARNING,
                "all hosts",
                f"The hosts have different NVIDIA drivers: {_told(drivers)}.",
                "Bring all hosts to the same one before a long run: kernels compiled for one may behave differently on another.",
            )
        )
    return findings


def compare_image_room(hosts: Sequence[Mapping[str, Any]], surveys: Results) -> list[Finding]:
    """Which image is chosen is not known before gate 3, so all candidates of the head that a worker lacks are looked at."""
    findings = []
    for host in hosts:
        survey = surveys.get(host["name"])
        disk = (survey or {}).get("disks", {}).get("docker")
        if survey is None or not disk:
            continue
        free = float(disk["free_gib"])
        if free < DOCKER_MINIMUM_GIB:
            findings.append(_docker_full(host["name"], disk, "Docker can write neither layers nor logs there"))
        elif host["role"] != "head":
            findings += _room_for_copies(host["name"], disk, free, survey, _head_images(hosts, surveys))
    return findings


def _head_images(hosts: Sequence[Mapping[str, Any]], surveys: Results) -> Mapping[str, Any]:
    head = next((host["name"] for host in hosts if host["role"] == "head"), "")
    images: Mapping[str, Any] = surveys.get(head, {}).get("images") or {}
    return images


def _room_for_copies(
    name: str, disk: Mapping[str, Any], free: float, survey: Mapping[str, Any], offered: Mapping[str, Any]
) -> list[Finding]:
    own = {image["id"] for image in survey["images"].values()}
    present = [image for image in offered.values() if image["id"] in own]
    sizes = {image: about["size_gib"] for image, about in offered.items() if about["id"] not in own}
    if not offered and not own:
        sizes = {"an image of the usual size": UNKNOWN_IMAGE_GIB}
    too_large = {image: size for image, size in sizes.items() if size > free}
    if not too_large:
        return []
    told = ", ".join(f"{image} {size:.1f} GiB" for image, size in too_large.items())
    if offered and not present and len(too_large) == len(sizes):
        return [_docker_full(name, disk, f"no candidate image would find room ({told})")]
    return [
        Finding(
            "HOST.DISK_TIGHT",
            WARNING,
            name,
            f"{disk['path']} has {free:.1f} GiB free: not enough for {told}, if that one is chosen.",
            "Remove images that nobody needs: docker image prune --all removes all that no container uses.",
        )
    ]


def _docker_full(name: str, disk: Mapping[str, Any], why: str) -> Finding:
    return Finding(
        "HOST.DISK_FULL",
        ERROR,
        name,
        f"{disk['path']} (docker) has {float(disk['free_gib']):.1f} GiB free of {float(disk['total_gib']):.1f}: {why}.",
        "Remove images that nobody needs: docker image prune --all removes all that no container uses; docker system df tells sizes.",
    )


def _told(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
