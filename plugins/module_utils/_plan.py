# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Gate 1: do preset, model and inventory fit together, and what does each host get?

PRIVATE to this collection. Plain values in, plain values out; nothing is asked of any host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._backend import (
    BACKENDS,
    MP,
    RAY,
    backend_ports,
    with_backend,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import is_within, port_ranges
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_lease import (
    LEASE_SECONDS,
    SHORTEST_LEASE_SECONDS,
)

GIB = 1024**3
GB = 1000**3
# A port of TCP has 16 bits (RFC 9293).
HIGHEST_PORT = 65535

UNLISTED_HOLDERS = ("fail", "stop")
SELECTION_KEYS = ("units", "containers", "images", "labels", "processes")

# Images and weights are offered by the head for the time of the copy only.
TRIAL_PORT = 20112
STAGING_PORTS = {"image": 20110, "weights": 20111, "weights_reports": 20113}


class PlanRefused(Exception):
    """The plan cannot be carried out; the findings say everything that does not fit."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(finding.message for finding in findings))
        self.findings = list(findings)


@dataclass(frozen=True)
class PlannedHost:
    """One host of the deployment. rank: 0 is the head. fabric_addresses: one per rail, the first is the control address."""

    name: str
    role: str
    fabric_addresses: tuple[str, ...]
    management_address: str = ""
    gpus: int = 1
    rank: int = 0

    @property
    def control_address(self) -> str:
        return self.fabric_addresses[0] if self.fabric_addresses else self.management_address

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role,
            "rank": self.rank,
            "gpus": self.gpus,
            "fabric_addresses": list(self.fabric_addresses),
            "control_address": self.control_address,
            "management_address": self.management_address,
        }


@dataclass(frozen=True)
class PlanOptions:
    """What the user may set beside the preset. open_ports: what the firewall leaves alone; ssh_ports: by which Ansible comes in."""

    backend: str = "ray"
    unlisted_holders: str = "fail"
    api_bind: str = ""
    api_port: int = 8000
    rollback: bool = True
    restore_seconds: int = LEASE_SECONDS
    firewall: bool = True
    open_ports: Sequence[Any] = ()
    ssh_ports: Sequence[Any] = ()
    stop: Mapping[str, Sequence[str]] = field(default_factory=dict)
    keep: Mapping[str, Sequence[str]] = field(default_factory=dict)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """C(base) with the values of C(over); dictionaries are merged, everything else (lists too) is replaced."""
    result = dict(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def ordered_hosts(hosts: Sequence[PlannedHost]) -> list[PlannedHost]:
    """Head first, workers in the order of the inventory, each with its rank."""
    heads = [host for host in hosts if host.role == "head"]
    workers = [host for host in hosts if host.role != "head"]
    return [
        PlannedHost(host.name, host.role, host.fabric_addresses, host.management_address, host.gpus, rank)
        for rank, host in enumerate(heads + workers)
    ]


def check_hosts(hosts: Sequence[PlannedHost]) -> list[Finding]:
    """Findings about the inventory: the head, addresses that are missing or doubled."""
    findings = []
    heads = [host.name for host in hosts if host.role == "head"]
    if len(heads) != 1:
        found = f"{len(heads)} ({', '.join(heads)})" if heads else "none"
        findings.append(
            Finding(
                "PLAN.HEAD_COUNT",
                ERROR,
                "inventory",
                f"Group head must have exactly one host, found {found}.",
                "Put one host into group head and all others into group worker of the inventory.",
            )
        )
    seen: dict[str, str] = {}
    for host in hosts:
        if not host.fabric_addresses and len(hosts) > 1:
            findings.append(
                Finding(
                    "PLAN.FABRIC_ADDRESS_MISSING",
                    ERROR,
                    host.name,
                    f"spark_fabric_addresses of {host.role} {host.name} is empty.",
                    "Set it to the list of the host's addresses on the fabric, one per rail, the control address first.",
                )
            )
        for address in host.fabric_addresses:
            if address in seen:
                findings.append(
                    Finding(
                        "PLAN.FABRIC_ADDRESS_TWICE",
                        ERROR,
                        host.name,
                        f"Fabric address {address} is given to {seen[address]} and to {host.name}.",
                        "Correct spark_fabric_addresses: each address belongs to one host.",
                    )
                )
            seen[address] = host.name
    return findings


def check_parallelism(preset: Mapping[str, Any], hosts: Sequence[PlannedHost]) -> list[Finding]:
    """Findings about tensor and pipeline parallel sizes against GPUs and the model's heads."""
    findings = []
    tensor, pipeline = int(preset["parallel"]["tensor"]), int(preset["parallel"]["pipeline"])
    gpus = sum(host.gpus for host in hosts)
    if tensor * pipeline != gpus:
        findings.append(
            Finding(
                "PLAN.WORLD_SIZE",
                ERROR,
                "parallel",
                f"Tensor parallel {tensor} x pipeline parallel {pipeline} = {tensor * pipeline} ranks, "
                f"but the inventory has {len(hosts)} host(s) with {gpus} GPU(s) in all.",
                "Set spark_tensor_parallel and spark_pipeline_parallel so that their product is the number of GPUs, "
                "or change the hosts of the inventory.",
            )
        )
    heads, kv_heads = int(preset["model"]["attention_heads"]), int(preset["model"]["key_value_heads"])
    if heads % tensor:
        valid = [size for size in range(1, 9) if heads % size == 0]
        findings.append(
            Finding(
                "PLAN.HEADS_NOT_DIVISIBLE",
                ERROR,
                "parallel.tensor",
                f"The model's {heads} attention heads cannot be divided by tensor parallel size {tensor}.",
                f"Allowed up to 8: {', '.join(map(str, valid))}. Set spark_tensor_parallel.",
            )
        )
    elif kv_heads % tensor and tensor % kv_heads:
        findings.append(
            Finding(
                "PLAN.KV_HEADS_NOT_DIVISIBLE",
                ERROR,
                "parallel.tensor",
                f"The model's {kv_heads} key-value heads can neither be divided by nor copied to {tensor} ranks.",
                "Set spark_tensor_parallel to a divisor or a multiple of the number of key-value heads.",
            )
        )
    return findings


def memory_need(preset: Mapping[str, Any], world_size: int) -> dict[str, float]:
    """GiB that one rank needs: weights, KV cache of one request of full length, overhead, and what vLLM is given."""
    model, engine, memory = preset["model"], preset["engine"], preset["memory"]
    weights = float(model["weights_gb"]) * GB / GIB / world_size
    cache = float(model["kv_bytes_per_token"]) * int(engine["max_model_len"]) / GIB / world_size
    return {
        "weights_gib": round(weights, 2),
        "kv_cache_gib": round(cache, 2),
        "overhead_gib": float(memory["overhead_gib"]),
        "required_gib": round(weights + cache + float(memory["overhead_gib"]), 2),
        "granted_gib": round(float(engine["utilization"]) * float(memory["host_gib"]), 2),
    }


def check_engine(preset: Mapping[str, Any], world_size: int) -> list[Finding]:
    """Findings about the engine's values: memory, context length, batch size."""
    findings = []
    model, engine = preset["model"], preset["engine"]
    need = memory_need(preset, max(world_size, 1))
    utilization = float(engine["utilization"])
    if not 0 < utilization < 1:
        findings.append(
            Finding(
                "PLAN.UTILIZATION",
                ERROR,
                "engine.utilization",
                f"spark_utilization is {utilization}; it must lie between 0 and 1.",
                "0.70 to 0.85 are known to work on a DGX Spark.",
            )
        )
    elif need["required_gib"] > need["granted_gib"]:
        findings.append(
            Finding(
                "PLAN.DOES_NOT_FIT",
                ERROR,
                "memory",
                f"A rank needs {need['required_gib']} GiB (weights {need['weights_gib']}, KV cache of one full request "
                f"{need['kv_cache_gib']}, overhead {need['overhead_gib']}), but utilization {utilization} of "
                f"{preset['memory']['host_gib']} GiB grants {need['granted_gib']}.",
                "Use more hosts, a smaller spark_max_model_len, or a smaller quantisation of the model.",
            )
        )
    if int(engine["max_model_len"]) > int(model["max_position_embeddings"]):
        findings.append(
            Finding(
                "PLAN.CONTEXT_TOO_LONG",
                ERROR,
                "engine.max_model_len",
                f"spark_max_model_len is {engine['max_model_len']}, the model knows {model['max_position_embeddings']} positions.",
                f"Set it to at most {model['max_position_embeddings']}.",
            )
        )
    if int(engine["max_num_batched_tokens"]) < int(engine["min_num_batched_tokens"]):
        findings.append(
            Finding(
                "PLAN.BATCHED_TOKENS",
                ERROR,
                "engine.max_num_batched_tokens",
                f"max_num_batched_tokens is {engine['max_num_batched_tokens']}, this model's block needs "
                f"{engine['min_num_batched_tokens']}.",
                "Raise it in spark_preset_overrides.engine.max_num_batched_tokens (8192 is known to work).",
            )
        )
    return findings


def check_options(preset: Mapping[str, Any], options: PlanOptions) -> list[Finding]:
    """Findings about the user's run variables."""
    findings = []
    if options.backend not in BACKENDS:
        findings.append(_not_allowed("spark_backend", options.backend, BACKENDS))
    if options.unlisted_holders not in UNLISTED_HOLDERS:
        findings.append(_not_allowed("spark_unlisted_holders", options.unlisted_holders, UNLISTED_HOLDERS))
    findings += check_ports(options)
    for name, selection in (("spark_stop", options.stop), ("spark_keep", options.keep)):
        unknown = sorted(set(selection) - set(SELECTION_KEYS))
        if unknown:
            findings.append(_not_allowed(name, ", ".join(unknown), SELECTION_KEYS))
    for kind in SELECTION_KEYS:
        both = sorted(set(options.stop.get(kind) or ()) & set(options.keep.get(kind) or ()))
        if both:
            findings.append(
                Finding(
                    "PLAN.STOP_AND_KEEP",
                    ERROR,
                    f"spark_stop.{kind}",
                    f"{', '.join(both)} is on both lists, spark_stop.{kind} and spark_keep.{kind}.",
                    "Take it off one of them. Nothing was stopped.",
                )
            )
    if not preset.get("candidates"):
        findings.append(
            Finding(
                "PLAN.NO_CANDIDATES",
                ERROR,
                "candidates",
                "The preset has no candidate images.",
                "Give spark_candidates: a list of {image: ...}, best first.",
            )
        )
    if options.restore_seconds < SHORTEST_LEASE_SECONDS:
        findings.append(
            Finding(
                "PLAN.RESTORE_SECONDS",
                ERROR,
                "spark_restore_seconds",
                f"spark_restore_seconds is {options.restore_seconds}; it must be {SHORTEST_LEASE_SECONDS} or more: a shorter silence of a "
                "healthy run is usual.",
                f"Leave it out ({LEASE_SECONDS}), or turn the way back off with spark_rollback: false.",
            )
        )
    return findings


def check_ports(options: PlanOptions) -> list[Finding]:
    """The ports that the user names: numbers of ports, and none that the deployment needs for itself."""
    named: list[tuple[str, Any]] = [("spark_api_port", options.api_port)]
    findings = []
    if isinstance(options.open_ports, (str, Mapping)) or not isinstance(options.open_ports, Sequence):
        findings.append(_not_allowed("spark_open_ports", str(options.open_ports), ("a list of TCP ports",)))
    else:
        named += [("spark_open_ports", port) for port in options.open_ports]
    named += [("ansible_port", port) for port in options.ssh_ports]
    own = port_ranges(_ports(options.backend))
    for variable, port in named:
        if not (str(port).isdigit() and 1 <= int(port) <= HIGHEST_PORT):
            findings.append(_not_allowed(variable, str(port), (f"1 to {HIGHEST_PORT}",)))
        elif is_within(int(port), own):
            findings.append(
                Finding(
                    "PLAN.PORT_OF_THE_DEPLOYMENT",
                    ERROR,
                    variable,
                    f"{variable} is {port}, which the deployment needs for itself: Ray, rendezvous and copies take the ports "
                    f"{', '.join(str(first) if first == last else f'{first} to {last}' for first, last in own)}.",
                    "Use another port.",
                )
            )
    return findings


def check_backend(backend: str, hosts: Sequence[PlannedHost]) -> list[Finding]:
    """Without Ray vLLM divides the ranks by the number of hosts."""
    counts = {host.name: host.gpus for host in hosts}
    if backend != MP or len(set(counts.values())) <= 1:
        return []
    found = ", ".join(f"{name}: {gpus}" for name, gpus in counts.items())
    return [
        Finding(
            "PLAN.MP_UNEVEN_GPUS",
            ERROR,
            "spark_backend",
            f"spark_backend is mp, and the hosts do not have the same number of GPUs ({found}).",
            "Use hosts with the same number of GPUs, or set spark_backend to ray.",
        )
    ]


def _not_allowed(variable: str, found: str, allowed: Sequence[str]) -> Finding:
    return Finding(
        "PLAN.VALUE_NOT_ALLOWED",
        ERROR,
        variable,
        f"{variable} is {found!r}; allowed: {', '.join(allowed)}.",
        f"Set {variable} to one of the allowed values.",
    )


def engine_arguments(preset: Mapping[str, Any], options: PlanOptions) -> list[str]:
    """Arguments of C(vllm serve) beside the model's folder (first argument), the backend's (_backend) and the API's key."""
    model, engine, parallel = preset["model"], preset["engine"], preset["parallel"]
    arguments = [
        *("--served-model-name", str(model["served_name"])),
        *("--host", _api(options)["bind"]),
        *("--port", str(options.api_port)),
        *("--tensor-parallel-size", str(parallel["tensor"])),
        *("--pipeline-parallel-size", str(parallel["pipeline"])),
        *("--gpu-memory-utilization", str(engine["utilization"])),
        *("--max-model-len", str(engine["max_model_len"])),
        *("--max-num-seqs", str(engine["max_num_seqs"])),
        *("--max-num-batched-tokens", str(engine["max_num_batched_tokens"])),
        *("--model-impl", str(engine["model_implementation"])),
    ]
    if engine.get("reasoning_parser"):
        arguments += ["--reasoning-parser", str(engine["reasoning_parser"])]
    if engine.get("tool_call_parser"):
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", str(engine["tool_call_parser"])]
    return arguments + [str(argument) for argument in engine.get("arguments") or []]


def _ports(backend: str) -> dict[str, Any]:
    return {**backend_ports(backend), "staging": dict(STAGING_PORTS), "trial": TRIAL_PORT}


def _api(options: PlanOptions) -> dict[str, Any]:
    bind = options.api_bind or "0.0.0.0"
    local = "127.0.0.1" if bind == "0.0.0.0" else bind
    return {"bind": bind, "port": options.api_port, "local_url": f"http://{local}:{options.api_port}"}


def _requirements(preset: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """What the image must have. null takes an entry of an extended preset away."""

    def given(kind: str) -> dict[str, Any]:
        return {key: value for key, value in (preset["requirements"].get(kind) or {}).items() if value is not None}

    # An image without Ray serves with mp: under auto the image selection decides.
    return {"require": {**given("require"), **({"ray": True} if backend == RAY else {})}, "prefer": given("prefer")}


def build_plan(preset: Mapping[str, Any], hosts: Sequence[PlannedHost], options: PlanOptions) -> dict[str, Any]:
    """The plan of the whole deployment.

    Raises PlanRefused with everything that does not fit, not only with the first thing.
    """
    ordered = ordered_hosts(hosts)
    world_size = sum(host.gpus for host in ordered)
    findings = [
        *check_hosts(ordered),
        *check_options(preset, options),
        *check_backend(options.backend, ordered),
        *check_parallelism(preset, ordered),
        *check_engine(preset, world_size),
    ]
    if any(finding.severity == ERROR for finding in findings):
        raise PlanRefused([finding for finding in findings if finding.severity in (ERROR, WARNING)])
    plan = {
        "preset": preset["name"],
        "description": preset.get("description", ""),
        "hosts": [host.as_dict() for host in ordered],
        "head": ordered[0].name,
        "world_size": world_size,
        "backend": options.backend,
        "model": dict(preset["model"]),
        "candidates": [dict(candidate) for candidate in preset["candidates"]],
        "requirements": _requirements(preset, options.backend),
        "engine": dict(preset["engine"]),
        "parallel": dict(preset["parallel"]),
        "engine_arguments": engine_arguments(preset, options),
        "environment": {key: str(value) for key, value in (preset["engine"].get("environment") or {}).items()},
        "memory": {**memory_need(preset, world_size), "reserve_gib": float(preset["memory"]["reserve_gib"])},
        "api": _api(options),
        "ports": _ports(options.backend),
        "firewall": options.firewall,
        # What the firewall leaves alone beside the API.
        "open_ports": sorted({int(port) for port in (*options.open_ports, *options.ssh_ports)}),
        "acceptance": dict(preset["acceptance"]),
        "expected": dict(preset.get("expected") or {}),
        "timeouts": dict(preset["timeouts"]),
        "stop": {kind: list(options.stop.get(kind) or ()) for kind in SELECTION_KEYS},
        "keep": {kind: list(options.keep.get(kind) or ()) for kind in SELECTION_KEYS},
        "unlisted_holders": options.unlisted_holders,
        "rollback": options.rollback,
        # 0: the host's own timer is not armed.
        "restore_seconds": options.restore_seconds if options.rollback else 0,
        "findings": [finding.as_dict() for finding in findings],
    }
    return with_backend(plan, {})
