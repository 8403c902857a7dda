# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a cause needs beyond its line: derived numbers, the phase of a shortage, which of two look-alikes it is.

PRIVATE to this collection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _engine_log_memory_rules as memory_rules
from ansible_collections.dgxspark.serving.plugins.module_utils import _ladder as ladder
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log import CONFIG, JOIN, LOAD
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_events import RULES, Event
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_facts import ADDRESS, DEFAULT_PORTS, Facts
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_rule import UNKNOWN_TRACEBACK

# A batch that has been good for all models of this hardware; a larger block needs the next power of two.
USUAL_BATCHED_TOKENS = 8192
# Names that one message shows.
_SHOWN_NAMES = 6
# SIGKILL as Python and as shells report it.
_KILLED_CODES = (-9, 137)
_GIB = {"KiB": 1 / 1024**2, "MiB": 1 / 1024, "GiB": 1.0}


@dataclass
class Told:
    """A cause in the making. texts: what message and remedy are filled with; numbers: what the result shows."""

    id: str
    phase: str
    message: str
    remedy: str
    numbers: dict[str, Any]
    texts: dict[str, Any] = field(default_factory=dict)
    host: str = ""
    rank: int | None = None
    confidence: str = ""


def complete(event: Event, facts: Facts, known: Mapping[str, Any]) -> Told:
    """known: settings, limits, plan, starts, as the caller has them."""
    rule = event.rule
    told = Told(rule.id, event.phase, rule.message, rule.remedy, dict(event.numbers))
    told.rank = _first(event.numbers, "rank", "worker_rank", "scheduler_rank")
    told.host = str(_first(event.numbers, "node", "killed_node", "died_node", "peer_text") or "")
    detail = _DETAILS.get(rule.id)
    if rule is memory_rules.OOM_RULE:
        _out_of_memory(told, event, facts)
    elif detail and rule.weight != UNKNOWN_TRACEBACK:
        detail(told, event, facts, known)
    told.texts = {**told.numbers, **told.texts}
    told.numbers = {
        name.removesuffix("_text"): value
        for name, value in told.numbers.items()
        if name
        not in (
            "rank",
            "worker_rank",
            "scheduler_rank",
            "tried_unit",
            "free_unit",
            "known_text",
            "frame_text",
            "specs_text",
        )
    }
    return told


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _rename(told: Told, name: str, *others: str) -> Any:
    """Different wordings have different groups for one thing."""
    value = _first(told.numbers, name, *others)
    for other in others:
        told.numbers.pop(other, None)
    if value is not None:
        told.numbers[name] = value
    return value


def _gib(value: Any, unit: Any) -> float:
    return round(float(value) * _GIB[str(unit)], 3)


def _out_of_memory(told: Told, event: Event, facts: Facts) -> None:
    phase = event.phase if event.phase not in (CONFIG, JOIN) else LOAD
    told.id, told.phase = memory_rules.ENGINE_OOM[phase], phase
    told.message, told.remedy = memory_rules.OOM_MESSAGES[phase], memory_rules.OOM_REMEDIES[phase]
    if "tried_unit" in told.numbers:
        told.numbers["tried_gib"] = _gib(told.numbers.pop("tried"), told.numbers["tried_unit"])
        told.texts["tried"] = f" ({told.numbers['tried_gib']:g} GiB asked for)"
    else:
        told.texts["tried"] = ""
    if "free_unit" in told.numbers:
        told.numbers["free_gib"] = _gib(told.numbers.pop("free"), told.numbers["free_unit"])
    told.texts["captured"] = ""
    if facts.captured and told.id == "ENGINE.OOM_GRAPH_CAPTURE":
        told.numbers["graphs_captured"], told.numbers["graphs"] = facts.captured
        told.texts["captured"] = f" ({facts.captured[0]} of {facts.captured[1]} done)"


def _architecture(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    architecture = str(_rename(told, "architecture", "missing_architecture") or "")
    names = re.findall(r"'(\w+)'", str(told.numbers.get("known_text") or ""))
    family = re.match(r"[A-Z][a-z]+\d*", architecture)
    closest = [name for name in names if family and name.startswith(family[0])]
    told.texts["newest"] = ""
    if closest:
        told.numbers["closest"] = closest
        told.texts["newest"] = f" (of this family it knows {', '.join(closest[-_SHOWN_NAMES:])})"


def _model_type(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    _rename(told, "model_type", "model_type_key")


def _batch(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    block = int(_rename(told, "block_size", "smallest") or 0)
    _rename(told, "max_num_batched_tokens", "batched_tokens")
    suggested = USUAL_BATCHED_TOKENS
    while suggested < block:
        suggested *= 2
    told.numbers["suggested_batched_tokens"] = suggested


def _argument(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    _rename(told, "complaint_text", "parser_text")


def _crash(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    _rename(told, "complaint_text", "signal_text", "native_text")


def _kernel(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    seen = []
    if facts.torch:
        told.numbers["torch"] = facts.torch
        seen.append(f"torch {facts.torch}")
    if facts.cuda_archs:
        told.numbers["cuda_archs"] = facts.cuda_archs
        seen.append(f"built for {facts.cuda_archs}")
    told.texts["build"] = f" ({', '.join(seen)})" if seen else ""


def _broken_import(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    numbers = told.numbers
    library = _first(numbers, "library_text", "missing_library_text")
    if numbers.get("module"):
        text = f"module {numbers['module']} is missing"
    elif numbers.get("name"):
        text = f"{numbers.get('source')} has no {numbers['name']}"
    elif library:
        text = f"library {library} is missing or of another version"
    else:
        text = f"symbol {numbers.get('symbol', 'unknown')} is undefined"
    told.texts["import_text"] = text


def _model_missing(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    others = (
        "folder_of_text",
        "repo_text",
        "weights_of_text",
        "config_of_text",
        "path_text",
        "no_folder_text",
        "mount_text",
        "format_text",
    )
    folder = _rename(told, "folder_text", *others)
    if not folder:
        quoted = re.search(r"['`\"]?(/[\w./-]+)", event.block)
        told.numbers["folder_text"] = (
            quoted[1] if quoted else str((known["plan"].get("model") or {}).get("folder") or "unknown")
        )


def _port(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    api = known["plan"].get("api") or {}
    port = (
        _rename(told, "port", "some_port")
        or api.get("port")
        or facts.settings.get("port")
        or DEFAULT_PORTS[facts.engine]
    )
    told.numbers["port"] = int(port)
    told.texts["port_text"] = f", {port},"
    told.texts["holder_text"] = ""
    if int(port) in facts.listeners:
        name, pid = facts.listeners[int(port)]
        told.numbers["holder"], told.numbers["holder_pid"] = name, pid
        told.texts["holder_text"] = f" by {name} (pid {pid})"


def _quantization(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    _rename(told, "method", "method_name", "weights_method")


def _interface(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    name = told.numbers.get("interface")
    told.texts["interface_text"] = (
        f"names {name}" if name else "does not fit, or the host's name leads to a loopback address"
    )


def _other_port(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    _rename(told, "port", "bind_port", "zmq_port", "used_port")


def _shared_memory(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    _rename(told, "segment_bytes", "extend_bytes")
    _rename(told, "segment_text", "extend_text")
    seen = []
    if "required_mib" in told.numbers:
        seen.append(f"{told.numbers['required_mib']} MiB needed, {told.numbers['free_mib']} MiB free")
    elif "segment_bytes" in told.numbers:
        seen.append(f"a segment of {told.numbers['segment_bytes']} bytes did not fit")
    if facts.shm:
        told.numbers["shm_size"], told.numbers["shm_used"] = facts.shm
        seen.append(f"{facts.shm[1]} of {facts.shm[0]} used")
    told.texts["shm_text"] = f" ({'; '.join(seen)})" if seen else ""


def _free_memory(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    numbers = told.numbers
    free, total, asked = float(numbers["free_gib"]), float(numbers["total_gib"]), float(numbers["utilization"])
    numbers["short_gib"] = round(float(numbers["requested_gib"]) - free, 2)
    fits = ladder.feasible_utilization(free, total)
    numbers["feasible_utilization"] = fits
    told.texts["repeated"] = told.texts["leftover"] = ""
    restarts = facts.restart_count or max(0, int(known["starts"]) - 1)
    if restarts:
        numbers["restart_count"] = restarts
        policy = f" by policy {facts.restart_policy}" if facts.restart_policy else ""
        told.texts["repeated"] = f" The engine was started again {restarts} time(s){policy}, which repeats the failure."
    if fits >= asked - ladder.MOST_UTILIZATION_DROP:
        told.texts["leftover"] = " That is what an idle host has: nobody has to be stopped."
        remedy = f"Set utilization to at most {fits:g}."
    else:
        told.texts["leftover"] = " Something else holds memory, or the page cache does."
        remedy = (
            "Find who holds memory (gpu_memory_check), then drop the page cache (sync; echo 3 > /proc/sys/vm/drop_caches). A lower "
            f"utilization ({fits:g} would start) leaves little for the KV cache."
        )
    if restarts:
        remedy = f"First stop what starts the engine again (docker update --restart=no, docker stop). {remedy}"
    told.texts["memory_remedy"] = remedy


def _kv_cache(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    numbers = told.numbers
    if "needed_gib" not in numbers:
        return
    numbers["short_gib"] = round(float(numbers["needed_gib"]) - float(numbers["available_gib"]), 2)
    fits = numbers.get("feasible_max_model_len")
    told.texts["feasible"] = f"; {fits} tokens would fit" if fits else ""
    told.texts["context_text"] = f"Set max_model_len to at most {fits}" if fits else "Lower max_model_len"
    short, now, total = numbers["short_gib"], known["settings"].utilization, known["limits"].total_gib
    # The engine rounds both to two digits: of a tiny model nothing is left to see.
    told.texts["short_text"] = f"{short} GiB " if short > 0 else ""
    told.texts["utilization_text"] = "raise the utilization"
    if short > 0:
        told.texts["utilization_text"] = f"give the engine {short} GiB more: utilization higher than now"
        if now and total:
            numbers["sufficient_utilization"] = ladder.sufficient_utilization(now, short, total)
            told.texts["utilization_text"] = (
                f"give the engine {short} GiB more: utilization {numbers['sufficient_utilization']:g} instead of {now:g}"
            )


def _ray_monitor(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    _rename(told, "node", "killed_node")
    numbers = told.numbers
    told.texts["used_text"] = (
        f" at {numbers['used_gb']:g} of {numbers['total_gb']:g} GB"
        if "used_gb" in numbers and "total_gb" in numbers
        else ""
    )


def _placement(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    """Ray has the GPUs but not the address, or too few GPUs: the engine's lines look alike."""
    specs = str(event.numbers.get("specs_text") or event.numbers.get("wanted_text") or event.line.text)
    wanted = _first({"a": _match(rf"node:({ADDRESS})", specs), "b": event.numbers.get("wanted_text")}, "a", "b")
    asked = len(re.findall(r"'GPU'", str(event.numbers.get("specs_text") or "")))
    told.texts["gpus_text"] = ""
    if facts.ray_gpus is not None:
        told.numbers["ray_gpus"] = facts.ray_gpus
        of = f" of {asked}" if asked else ""
        told.texts["gpus_text"] = f" ({facts.ray_gpus:g}{of} there)"
    if asked:
        told.numbers["required_gpus"] = asked
    if facts.ray_addresses:
        told.numbers["ray_addresses"] = list(facts.ray_addresses)
    told.texts["ray_nodes_text"] = f" (its nodes are {', '.join(facts.ray_addresses)})" if facts.ray_addresses else ""
    if wanted:
        told.numbers["wanted_text"] = wanted
    enough = facts.ray_gpus is not None and asked and facts.ray_gpus >= asked
    stranger = bool(wanted and facts.ray_addresses and wanted not in facts.ray_addresses)
    if event.rule.id == "ENGINE.RAY_WRONG_ADDRESS":
        if wanted in facts.ray_addresses and not enough:
            _become(told, "ENGINE.RAY_GPUS_MISSING")
    elif wanted and (stranger or (enough and wanted not in facts.ray_addresses)):
        _become(told, "ENGINE.RAY_WRONG_ADDRESS")
        told.confidence = "likely"


def _match(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found[1] if found else None


def _become(told: Told, identity: str) -> None:
    """The look-alike's message and remedy."""
    rule = next(rule for rule in RULES if rule.id == identity)
    told.id, told.message, told.remedy = rule.id, rule.message, rule.remedy


def _reach(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    address = _rename(told, "address_text", "head_text", "rpc_text")
    told.texts["address"] = f" at {address}" if address else ""
    told.texts["joined_text"] = ""
    if "joined" in told.numbers:
        told.texts["joined_text"] = f": {told.numbers['joined']} of {told.numbers['expected']} came"


def _timeout(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    what = _first(told.numbers, "operation", "call")
    told.texts["call_text"] = f" ({what})" if what else ""


def _died(told: Told, event: Event, facts: Facts, known: Mapping[str, Any]) -> None:
    if told.rank is None:
        proc = re.search(r"(\d+)$", str(told.numbers.get("proc_text") or ""))
        told.rank = int(proc[1]) if proc else None
    code = _rename(told, "exit_code", "scheduler_exit_code")
    ending = str(told.numbers.get("exit_text") or "")
    if code in _KILLED_CODES or "9/KILL" in ending or "status=137" in ending:
        told.message += " It got SIGKILL: the host's journal says from whom, most often for memory."
    if facts.exit_status is not None:
        told.numbers["exec_main_status"] = facts.exit_status
    if facts.unit_restarts is not None:
        told.numbers["unit_restarts"] = facts.unit_restarts


_DETAILS: Mapping[str, Callable[[Told, Event, Facts, Mapping[str, Any]], None]] = {
    "ENGINE.UNKNOWN_ARCHITECTURE": _architecture,
    "ENGINE.MODEL_TYPE_UNKNOWN": _model_type,
    "ENGINE.BATCH_TOO_SMALL": _batch,
    "ENGINE.ARGUMENT_REFUSED": _argument,
    "ENGINE.CRASHED": _crash,
    "ENGINE.NO_KERNEL": _kernel,
    "ENGINE.BROKEN_IMPORT": _broken_import,
    "ENGINE.MODEL_MISSING": _model_missing,
    "ENGINE.PORT_IN_USE": _port,
    "ENGINE.RENDEZVOUS_PORT_IN_USE": _other_port,
    "ENGINE.RAY_PORT_IN_USE": _other_port,
    "ENGINE.SHM_TOO_SMALL": _shared_memory,
    "ENGINE.FREE_MEMORY_SHORT": _free_memory,
    "ENGINE.KV_CACHE_TOO_SMALL": _kv_cache,
    "ENGINE.RAY_MEMORY_MONITOR": _ray_monitor,
    "ENGINE.RAY_WRONG_ADDRESS": _placement,
    "ENGINE.RAY_GPUS_MISSING": _placement,
    "ENGINE.RAY_HEAD_UNREACHABLE": _reach,
    "ENGINE.RANKS_MISSING": _reach,
    "ENGINE.COLLECTIVE_TIMEOUT": _timeout,
    "ENGINE.QUANTIZATION_UNKNOWN": _quantization,
    "ENGINE.GLOO_INTERFACE": _interface,
    "ENGINE.RAY_NODE_LOST": _died,
    "ENGINE.RANK_DIED": _died,
    "ENGINE.DIED": _died,
}
