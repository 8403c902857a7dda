# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is known about memory in logs: what the engine refuses, what ran out, and who kills processes for it.

PRIVATE to this collection.
"""

from __future__ import annotations

import re

from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log import (
    GRAPH_CAPTURE,
    KV_CACHE,
    LOAD,
    PROFILE,
    SERVE,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_rule import (
    FALLBACK,
    GENERIC,
    KILLER,
    ROOT,
    Rule,
)

# Names under which an engine, Ray or their compilers run; others may be killed without harm to the service.
_ENGINE_PROCESS = (
    r"(?P<process>VLLM\S*|vllm\S*|python\S*|ray\S*|raylet|gcs_server|sglang\S*|EngineCore\S*|pt_main_thread|cicc|ptxas|ninja|nvcc|"
    r"dgxspark\S*|docker-[0-9a-f]\S*)"
)

ENGINE_OOM = {
    LOAD: "ENGINE.OOM_LOAD",
    PROFILE: "ENGINE.OOM_PROFILE",
    KV_CACHE: "ENGINE.OOM_KV_CACHE",
    GRAPH_CAPTURE: "ENGINE.OOM_GRAPH_CAPTURE",
    SERVE: "ENGINE.OOM_SERVING",
}
OOM_MESSAGES = {
    LOAD: "Memory ran out{where} while the weights were loaded{tried}.",
    PROFILE: "Memory ran out{where} in the first dummy run, before the KV cache was sized{tried}.",
    KV_CACHE: "Memory ran out{where} when the KV cache was made{tried}.",
    GRAPH_CAPTURE: "Memory ran out{where} while CUDA graphs were captured{captured}{tried}. The KV cache had been sized before: its "
    "size is not the fault.",
    SERVE: "Memory ran out{where} while requests were served{tried}.",
}
OOM_REMEDIES = {
    LOAD: "See what else holds memory on the host (gpu_memory_check). If nothing does, the weights do not fit: more hosts or a "
    "smaller quantisation. A lower utilization does not help here.",
    PROFILE: "Lower max_num_batched_tokens, then max_num_seqs; both make the dummy run smaller.",
    KV_CACHE: "Lower the utilization by 0.05: something beside the engine has taken memory since it was measured.",
    GRAPH_CAPTURE: "In this order: lower the utilization by 0.02 to 0.05; capture fewer graph sizes; lower max_num_seqs; as the last "
    "resort enforce_eager, which makes decoding slower.",
    SERVE: "Lower the utilization by 0.05, then max_num_batched_tokens, then max_num_seqs.",
}

# One id stands for all phases here; the verdict replaces it by the one of the phase.
OOM_RULE = Rule(
    "ENGINE.OOM_LOAD",
    ROOT,
    re.compile(
        r"(?:OutOfMemoryError: )?(?:CUDA|HIP) out of memory(?:\. Tried to allocate (?P<tried>[\d.]+) (?P<tried_unit>[KMG]iB))?|"
        r"(?:CUDA|cuda|Cuda|HIP|GPU|gpu|[Dd]river|[Dd]evice|cu[A-Z]\w+|nvml|NVML|[Aa]llocator)\b[^.;\n]{0,60}[Oo]ut[ -]of[ -]memory|"
        r"[Oo]ut of (?:GPU|device|CUDA|memory (?:on|while|during|when))|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|"
        r"CUBLAS_STATUS_ALLOC_FAILED|(?:[Nn]ot enough|[Ii]nsufficient) (?:GPU|device|CUDA) memory|"
        r"[Ff]ailed to allocate (?:device |GPU |CUDA |pinned )?(?:memory|[\d.]+ ?(?:bytes|[KMG]i?B))|"
        r"Failed to load model - not enough GPU memory|"
        r"DefaultCPUAllocator: (?:can't|not enough) (?:allocate )?memory|^MemoryError\b|std::bad_alloc|"
        r"OSError: \[Errno 12\] Cannot allocate memory|"
        r"nvcc error *: '\w+' died due to signal 9"
    ),
    "",
    "",
    more=(
        re.compile(
            r"total capacity of (?P<total_gib>[\d.]+) GiB.*?of which (?P<free>[\d.]+) (?P<free_unit>[KMG]iB) is free"
        ),
        re.compile(r"this process has (?P<used_gib>[\d.]+) GiB memory in use"),
        re.compile(r"occurred when warming up (?:sampler|pooler) with (?P<requests>\d+) dummy requests"),
    ),
    # Out of another's report, or advice about what may happen.
    unless=re.compile(r"If you (?:are running|see|encounter)|may (?:lead to|cause|result in)|to avoid"),
)

MEMORY_RULES = (
    Rule(
        "ENGINE.FREE_MEMORY_SHORT",
        ROOT,
        re.compile(
            r"(?:Free memory on device(?: \S+)?|Available memory on node \S+) \((?P<free_gib>[\d.]+)/(?P<total_gib>[\d.]+) GiB\) on startup is less than "
            r"(?:desired (?:GPU|CPU) memory utilization|the engine's budget[^(]*) ?\((?P<utilization>[\d.]+), (?P<requested_gib>[\d.]+) GiB\)"
        ),
        "{free_gib} of {total_gib} GiB are free{where}, and utilization {utilization} asks for {requested_gib}: {short_gib} GiB short."
        "{repeated}{leftover}",
        "{memory_remedy}",
        phase=LOAD,
    ),
    Rule(
        "ENGINE.KV_CACHE_TOO_SMALL",
        ROOT,
        re.compile(
            r"max seq len \((?P<max_model_len>\d+)\), \(?(?P<needed_gib>[\d.]+) GiB KV cache is needed, which is larger than the "
            r"available KV cache memory \((?P<available_gib>-?[\d.]+) GiB\)(?:.*?estimated maximum model length is (?P<feasible_max_model_len>\d+))?"
        ),
        "The KV cache is {short_text}too small for one request of {max_model_len} tokens: {needed_gib} GiB needed, "
        "{available_gib} GiB there{feasible}. Weights and connections are fine.",
        "{context_text}, or {utilization_text}.",
        phase=KV_CACHE,
    ),
    Rule(
        "ENGINE.KV_CACHE_TOO_SMALL",
        ROOT,
        re.compile(
            r"max seq len \((?P<max_model_len>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache "
            r"\((?P<feasible_max_model_len>\d+)\)"
        ),
        "The KV cache holds {feasible_max_model_len} tokens; one request of {max_model_len} does not fit.",
        "Set max_model_len to at most {feasible_max_model_len}, or raise the utilization.",
        phase=KV_CACHE,
    ),
    Rule(
        "ENGINE.KV_CACHE_TOO_SMALL",
        ROOT,
        re.compile(
            r"No available memory for the cache blocks|on kv cache allocation is less than requested memory for kv|"
            r"not enough GPU memory available to serve even a single token|"
            r"RuntimeError: Not enough memory\. Please try (?:to increase|increasing) (?:`?gpu_memory|--mem-fraction-static)|"
            r"The memory capacity is unbalanced"
        ),
        "Nothing is left for the KV cache after the weights and the dummy run.",
        "Raise the utilization if the host has memory free, or lower max_num_batched_tokens.",
        phase=KV_CACHE,
    ),
    OOM_RULE,
    Rule(
        "ENGINE.REGISTRATION_FAILED",
        GENERIC,
        re.compile(r"Call to ibv_reg_mr\w* failed with error Cannot allocate memory|ibv_reg_mr\w*.*ENOMEM"),
        "NCCL could not register memory with the network device{where}.",
        "Give the containers --ulimit memlock=-1. If it is set: kernels 7.0 need the parameter kho=off (nccl_ib_check tells).",
        phase="join",
        any_level=True,
    ),
)

KILLER_RULES = (
    # The line is made by _memguard.
    Rule(
        "ENGINE.KILLED_BY_MEMGUARD",
        KILLER,
        re.compile(
            r"dgxspark-memguard: killed (?P<victim_text>.+?) \(role (?P<role>\w+)\): MemAvailable (?P<available_mib>\d+) MiB is below the "
            r"floor of (?P<floor_mib>\d+) MiB"
        ),
        "The memory guard ended {victim_text}{where} in phase {phase}: {available_mib} MiB were left of the host's memory, the floor is "
        "{floor_mib} MiB.",
        "Lower the utilization. The guard keeps the host alive; do not turn it off.",
        any_level=True,
    ),
    Rule(
        "ENGINE.RAY_MEMORY_MONITOR",
        KILLER,
        re.compile(
            r"Memory on the node \(IP: (?P<node>[\d.]+).*?was (?P<used_gb>[\d.]+)GB / (?P<total_gb>[\d.]+)GB \((?P<fraction>[\d.]+)\)|"
            r"[Ww]orker(?:s|\(s\)).*killed (?:due to memory pressure|due to the node running low on memory)(?:.*?IP: (?P<killed_node>[\d.]+))?"
        ),
        "Ray's memory monitor ended a worker{where}{used_text}. It counts the page cache and the GPU's share of unified memory. This is "
        "neither NCCL nor the kernel.",
        "Set RAY_memory_monitor_refresh_ms=0 on every host before ray start; in the environment of the engine alone it has no effect.",
        any_level=True,
        more=(
            re.compile(
                r"Memory on the node \(IP: (?P<node>[\d.]+).*?was (?P<used_gb>[\d.]+)GB / (?P<total_gb>[\d.]+)GB \((?P<fraction>[\d.]+)\)"
            ),
        ),
        # Ray's own periodic report of zero kills.
        unless=re.compile(r"\b0 Workers \(tasks / actors\) killed due to memory pressure"),
    ),
    Rule(
        "ENGINE.KILLED_BY_KERNEL",
        KILLER,
        re.compile(
            r"[Oo]ut of memory: Kill(?:ed)? process (?P<pid>\d+) \("
            + _ENGINE_PROCESS
            + r"\)(?:.*?anon-rss:(?P<rss_kb>\d+)kB)?|"
            r"oom-kill:constraint=\w+.*task=(?P<task_text>(?:VLLM|vllm|python|ray|sglang)[^,]*),pid=(?P<task_pid>\d+)|"
            r"A process of this unit has been killed by the OOM killer"
        ),
        "The kernel ran out of memory{where} and ended a process of the engine in phase {phase}.",
        "Lower the utilization. Keep dgxspark-memguard running: it acts before the host freezes.",
        any_level=True,
    ),
    Rule(
        "ENGINE.KILLED_BY_EARLYOOM",
        KILLER,
        re.compile(
            r"sending SIG(?:TERM|KILL) to process (?P<pid>\d+)(?: uid \d+)? \""
            + _ENGINE_PROCESS
            + r"\":?.*?VmRSS (?P<rss_mib>\d+) MiB|"
            r"[Kk]illing process (?P<old_pid>\d+) \"(?:VLLM|vllm|python|ray|sglang)[^\"]*\" with signal|"
            r"(?:systemd-oomd.*)?Killed /\S*(?:docker|dgxspark|vllm|ray)\S* due to memory (?:used|pressure)"
        ),
        "A daemon that guards the host's memory (earlyoom or systemd-oomd) ended a process of the engine{where} in phase {phase}.",
        "Lower the utilization. Keep that daemon off the engine and let dgxspark-memguard act, which ends the whole engine at once.",
        any_level=True,
    ),
)

DRIVER_RULES = (
    Rule(
        "ENGINE.DRIVER_OUT_OF_MEMORY",
        FALLBACK,
        re.compile(r"NV_ERR_NO_MEMORY|NVRM: .*(?:Out of memory|Cannot allocate)"),
        "The driver got no memory{where} in phase {phase}, and the engine failed.",
        "Lower the utilization. On unified memory the driver runs out while MemAvailable still looks good.",
        any_level=True,
        certain=False,
    ),
)

RULES = (*MEMORY_RULES, *KILLER_RULES, *DRIVER_RULES)
