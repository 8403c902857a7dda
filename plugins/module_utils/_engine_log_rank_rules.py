# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is known about ranks that do not find each other, that hang or die: Ray, the rendezvous, NCCL and Gloo.

PRIVATE to this collection.
"""

from __future__ import annotations

import re

from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log import JOIN
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_rule import (
    DEAD,
    DEATH,
    GENERIC,
    LOST,
    ROOT,
    TIMEOUT,
    WAITING,
    Rule,
)

_LOOK_AT_NCCL = "Give the log of all ranks with NCCL_DEBUG=INFO to nccl_ib_check, which names the reason."

RAY_RULES = (
    Rule(
        "ENGINE.RAY_VERSION_MISMATCH",
        ROOT,
        re.compile(r"(?<!patch )Version mismatch: The cluster was started with"),
        "The Ray of {node} does not fit the cluster's: Ray {own_ray_text} and Python {own_python_text} there, Ray {cluster_ray_text} and "
        "Python {cluster_python_text} in the cluster.",
        "Use the same image on all hosts (compare the ids, not the tags). A different patch version of Python is enough.",
        phase=JOIN,
        more=(
            re.compile(
                r"cluster was started with:\s+Ray: (?P<cluster_ray_text>[\w.]+)\s+Python: (?P<cluster_python_text>[\w.]+)\s+"
                r"This process on (?:node )?(?P<node>\S+?),? was started with:\s+Ray: (?P<own_ray_text>[\w.]+)\s+"
                r"Python: (?P<own_python_text>[\w.]+)"
            ),
        ),
    ),
    Rule(
        "ENGINE.RAY_TWO_RUNTIMES",
        ROOT,
        re.compile(
            r"Every node should have a unique IP address\. Got (?P<nodes>\d+) nodes.*?and (?P<unique_addresses>\d+) unique IP "
            r"addresses \{(?P<addresses_text>[^}]*)\}"
        ),
        "{nodes} Ray nodes have only {unique_addresses} addresses: on one host a second Ray runtime of an earlier deployment has joined.",
        "Find all containers that run raylet on each host, stop the stale one (ray stop --force, or remove it), and start again. The "
        "network is not the fault.",
        phase=JOIN,
    ),
    Rule(
        "ENGINE.RAY_WRONG_ADDRESS",
        ROOT,
        re.compile(
            r"No available node types can fulfill resource request \{.*?'node:(?P<wanted_text>[\d.]+)'|"
            r"driver node id (?P<driver_node_text>\w+) is not included in a placement group"
        ),
        "The engine asks Ray for node {wanted_text}, and Ray knows no node of that address{ray_nodes_text}: the engine took another "
        "interface than Ray. GPUs are not missing.",
        "Set VLLM_HOST_IP and ray start --node-ip-address to the same address, the host's fabric address, on each host.",
        phase=JOIN,
        any_level=True,
    ),
    Rule(
        "ENGINE.RAY_WRONG_ADDRESS",
        ROOT,
        re.compile(
            r"No node info found matching|Can't find a `?node_ip_address|no raylet .*(?:found|running) (?:on|at) this node"
        ),
        "The engine finds no Ray node of its own host: Ray runs under another address there, or not at all.",
        "Set VLLM_HOST_IP and ray start --node-ip-address to the same address, the host's fabric address, on each host.",
        phase=JOIN,
    ),
    Rule(
        "ENGINE.RAY_GPUS_MISSING",
        ROOT,
        re.compile(
            r"Cannot provide a placement group|No available node types can fulfill resource request \{'GPU': [\d.]+\}|"
            r"number of required GPUs exceeds the total number of available GPUs|"
            r"Current node has no GPU available"
        ),
        "Ray has not enough GPUs for all ranks{gpus_text}: a worker has not joined, or another Ray was started on this host.",
        "Look at ray start on the worker: its log, the head's address, the firewall. Then start the engine again. The tensor parallel "
        "size is not the fault.",
        phase=JOIN,
    ),
    Rule(
        "ENGINE.RAY_GPUS_MISSING",
        WAITING,
        re.compile(
            r"Waiting for creating a placement group of specs for (?P<waited_seconds>\d+) seconds\. specs=(?P<specs_text>\[.*?\])\. "
        ),
        "The engine has waited {waited_seconds} s for GPUs in Ray{gpus_text}: a worker has not joined, or another Ray was started on "
        "this host. By default vLLM gives up after 1800 s.",
        "Look at ray start on the worker: its log, the head's address, the firewall. Then start the engine again. The tensor parallel "
        "size is not the fault.",
        phase=JOIN,
        any_level=True,
        certain=False,
    ),
    Rule(
        "ENGINE.RAY_HEAD_UNREACHABLE",
        GENERIC,
        re.compile(
            r"(?:Failed|Unable|unable|failed) to connect to GCS(?: at address (?P<address_text>[\d.]+:\d+))?|"
            r"Could not find any running Ray instance|Timed out while waiting for the GCS|GCS server (?:is dead|did not)|"
            r"(?:Failed to get|cannot get) cluster ID from GCS|Ray runtime .* can(?:no|')t? connect to (?P<head_text>[\d.]+:\d+)|"
            r"rpc_client.*(?P<rpc_text>[\d.]+:6379).*(?:UNAVAILABLE|failed to connect)"
        ),
        "Ray{where} cannot reach the head{address}.",
        "See that dgxspark-ray runs on the head, that the address is the head's fabric address, and that no firewall is between.",
        phase=JOIN,
        any_level=True,
        survived=re.compile(r"Ray runtime started|Connected to Ray cluster"),
    ),
    Rule(
        "ENGINE.RAY_TOKEN_REFUSED",
        ROOT,
        re.compile(
            r"InvalidAuthToken|Authentication token is missing or incorrect|GCS returned an authentication error|"
            r"[Tt]oken authentication is enabled but (?:Ray couldn't find|expected token)|No authentication token found|"
            r"AuthenticationError: .*token"
        ),
        "Ray{where} has no token, or not the cluster's.",
        "Give all hosts the same token file and set RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH on each.",
        phase=JOIN,
        any_level=True,
    ),
)

RANK_RULES = (
    Rule(
        "ENGINE.RANKS_MISSING",
        ROOT,
        re.compile(
            r"(?:Timed out|DistStoreError).*?(?:after (?P<waited_seconds>\d+) seconds )?waiting for clients\. "
            r"(?P<joined>\d+)/(?P<expected>\d+) clients joined|"
            r"client socket has (?:timed out|failed to connect).*?(?:connect to|to any network address of) \(?\[?(?P<address_text>[\w.:-]+)|"
            r"Connection refused.*TCPStore|TCPStore.*(?:timed out|Connection refused)"
        ),
        "Not all ranks found each other{joined_text}{address}.",
        "See that the engine runs on every host, that all use the head's fabric address, and that no firewall is between.",
        phase=JOIN,
    ),
    Rule(
        "ENGINE.GLOO_INTERFACE",
        ROOT,
        re.compile(
            r"Unable to find (?:address|interface) for: ?(?P<interface>[\w.-]+)|ifa != nullptr|"
            r"[Gg]loo.*(?:connectFullMesh failed|makeDeviceForInterface)|No network interface found.*[Gg]loo"
        ),
        "Gloo finds no usable interface{where}: GLOO_SOCKET_IFNAME {interface_text}.",
        "Give each host its own interface: the names differ between hosts, and the head's must not be copied to the others.",
        phase=JOIN,
    ),
    Rule(
        "ENGINE.COLLECTIVE_TIMEOUT",
        TIMEOUT,
        re.compile(
            r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\d+, OpType=(?P<operation>\w+).*?Timeout\(ms\)=(?P<timeout_ms>\d+)|"
            r"(?:RPC call to (?P<call>\w+) timed out|Watchdog caught collective operation timeout)|"
            r"(?:Some NCCL operations have failed or timed out)|[Ww]atchdog (?:thread )?(?:timeout|timed out)|"
            r"could finish the model loading, but there are other ranks that|"
            r"(?:Timed out|timed out) waiting (?:\d+ms )?for (?:recv|send) operation|execute_model timed out"
        ),
        "The ranks waited for each other without an end{call_text}: one hangs.",
        f"{_LOOK_AT_NCCL} NCCL before 2.30.4 can hang in graphs over hosts; another engine or image may not.",
        next_candidate=True,
    ),
    Rule(
        "ENGINE.NCCL_FAILED",
        GENERIC,
        re.compile(
            r"DistBackendError: (?P<complaint_text>NCCL error.*)|NCCL error: (?P<short_text>.*)|"
            r"ncclUnhandledCudaError|ncclSystemError|ncclRemoteError|ncclInternalError|ncclInvalidUsage|"
            r"Got completion from peer .* with (?:status|error)|Call to ibv_modify_qp failed|"
            r"Failed to initialize any NET plugin|Bootstrap ?: no socket interface found"
        ),
        "NCCL failed{where}.",
        _LOOK_AT_NCCL,
        phase=JOIN,
        unless=re.compile(r"NCCL INFO (?!.*ibv_modify_qp failed)"),
    ),
    Rule(
        "ENGINE.HANG",
        WAITING,
        re.compile(r"No available shared memory broadcast block found in (?P<silent_seconds>\d+) seconds"),
        "A rank does not answer since more than {silent_seconds} s in phase {phase}, and nothing failed.",
        f"{_LOOK_AT_NCCL} Another engine or image may not hang.",
        any_level=True,
        certain=False,
        next_candidate=True,
    ),
)

DEATH_RULES = (
    Rule(
        "ENGINE.RAY_NODE_LOST",
        LOST,
        re.compile(
            r"node with node id: (?P<node_id_text>\w+) and address: (?P<node>[\d.]+).*marked dead|"
            r"Raylet is terminated|marked dead because the detector has missed too many heartbeats|"
            r"NodeDiedError|The node(?: \S+)? (?:with IP|IP) (?P<died_node>[\d.]+) (?:is dead|died)|raylet process (?:has )?died|"
            r"failed the health check too many times"
        ),
        "Ray lost a host{where}: it does not answer any more, or its Ray ended.",
        "See whether the host, its fabric link and dgxspark-ray on it run. Clean Ray's state on all hosts before the next start.",
        any_level=True,
    ),
    Rule(
        "ENGINE.RANK_DIED",
        DEATH,
        re.compile(
            r"rank=\[(?P<rank>\d+)\] died unexpectedly|"
            r"Worker proc (?P<proc_text>\S+) died unexpectedly(?: \(exit code: (?P<exit_code>-?\d+)\))?|"
            r"Rank (?P<scheduler_rank>\d+) scheduler (?:died|is dead)(?: \(exit code: (?P<scheduler_exit_code>-?\d+)\))?|"
            r"Connection closed by peer \[(?P<peer_text>[\d.]+)\]|ActorDiedError|The actor died unexpectedly|"
            r"WorkerProc initialization failed|Worker (?:exited unexpectedly|unexpectedly exits)|"
            r"A worker died or was killed while executing|Connection reset by peer"
        ),
        "{who} ended in phase {phase}; no line says why.",
        "Look at the journal of that host (kernel, dgxspark-memguard) and at its Ray log. Clean Ray's state before the next start.",
        any_level=True,
    ),
    Rule(
        "ENGINE.DIED",
        DEAD,
        re.compile(
            r"EngineDeadError|EngineCore encountered a fatal error|EngineCore failed to start|EngineCore hit an exception|"
            r"Engine core initialization failed|"
            r"Engine core proc \S+ died|Engine process failed to start|Engine loop has died|Received sigquit from a child process|"
            r"Scheduler hit an exception|WorkerProc failed|"
            r"Main process exited, code=(?P<exit_text>(?:exited|killed|dumped), status=(?!0/)\S+)|Failed with result '(?P<result>[\w-]+)'"
        ),
        "The engine died in phase {phase}; no line says why. Its exit status may be 0 all the same.",
        "Give the logs of all ranks and the host journal, from the start on.",
        any_level=True,
        certain=False,
    ),
)

RULES = (*RAY_RULES, *RANK_RULES, *DEATH_RULES)

HANG_AFTER_INIT_MESSAGE = (
    "The ranks are connected, and then the log ends: the engine hangs after NCCL's initialisation. Nothing failed, and no weights "
    "were loaded."
)
RANKS_WAITED_MESSAGE = "The log ends while a rank waits for the others, and they do not come."
HANG_MESSAGE = (
    "The log ends in phase {phase} without an error, and nothing has moved for {silent_seconds} s: the engine hangs."
)
HANG_REMEDY = f"Take the next candidate: another engine or image may not hang. {_LOOK_AT_NCCL}"
UNKNOWN_MESSAGE = "This failure is not known: {exception_text}{frame_text}."
UNKNOWN_REMEDY = "Read the traceback above this line. The engine cannot be started like this; memory is not the fault as far as is known."
# Exceptions that report another process's failure.
SECONDARY = re.compile(
    r"EngineDeadError|Engine core initialization failed|Engine core proc|Executor failed|Worker failed with error|"
    r"WorkerProc (?:initialization )?failed|KeyboardInterrupt|SystemExit|CancelledError|BrokenPipeError|EOFError|ConnectionResetError|"
    r"ActorDiedError|RayActorError|RayTaskError|Connection closed by peer|died unexpectedly|Engine loop has died|"
    r"ProcessRaisedException|ChildFailedError|leaked|GracefulShutdown"
)
