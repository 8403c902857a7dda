# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is known about failing starts: arguments, model, image, weights, ports and shared memory.

PRIVATE to this collection. Wordings are those of vLLM 0.4 to 0.32, SGLang 0.4 to 0.5, transformers 4 and 5 and
huggingface_hub. Memory is in _engine_log_memory_rules, Ray and the ranks in _engine_log_rank_rules.
"""

from __future__ import annotations

import re

from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log import CONFIG, LOAD, SERVE
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_log_rule import FALLBACK, GENERIC, ROOT, Rule

_OTHER_IMAGE = "Use an image whose engine knows the model (registry_probe says which do)."

CONFIG_RULES = (
    Rule(
        "ENGINE.UNKNOWN_ARCHITECTURE",
        ROOT,
        re.compile(
            r"Model architectures? \[?'?(?P<architecture>\w+)'?[^\]]*\]? (?:are|is) not supported "
            r"(?:for now|in-tree anymore|by)(?:.*?Supported architectures: (?P<known_text>.*))?"
        ),
        "The engine in this image does not know the architecture {architecture}{newest}.",
        f"{_OTHER_IMAGE} Qwen3.5 needs vLLM 0.17 or later. A newer transformers does not help: the engine's own list decides.",
        phase=CONFIG,
        next_candidate=True,
    ),
    Rule(
        "ENGINE.UNKNOWN_ARCHITECTURE",
        ROOT,
        re.compile(
            r"Model architectures? \[?'?(?P<architecture>\w+)'?\]? (?:was supported in vLLM until v(?P<last_version_text>[\d.]+)|"
            r"failed to be inspected)|Cannot find model module\. '(?P<missing_architecture>\w+)'"
        ),
        "The engine in this image cannot serve the architecture {architecture}.",
        _OTHER_IMAGE,
        phase=CONFIG,
        next_candidate=True,
    ),
    Rule(
        "ENGINE.UNKNOWN_ARCHITECTURE",
        FALLBACK,
        re.compile(r"Resolved architecture: (?P<architecture>Transformers\w+)"),
        "The engine in this image does not know the model's architecture and took the generic implementation {architecture}, "
        "which failed later.",
        f"{_OTHER_IMAGE} With --model-impl vllm the engine says so at once.",
        phase=CONFIG,
        any_level=True,
        certain=False,
        next_candidate=True,
    ),
    Rule(
        "ENGINE.MODEL_TYPE_UNKNOWN",
        ROOT,
        re.compile(
            r"model type `?(?P<model_type>[\w.-]+)`? but Transformers does not recognize this architecture|"
            r"Unrecognized model in .*Should have a `model_type` key|KeyError: '(?P<model_type_key>qwen3_5\w*)'"
        ),
        "Neither the transformers nor the engine in this image knows the model type {model_type}.",
        "Use a newer image. For Qwen3.5: vLLM 0.17 or later brings the configuration itself, whatever its transformers. "
        "Trusting remote code does not help, the model has none.",
        phase=CONFIG,
        next_candidate=True,
    ),
    Rule(
        "ENGINE.BATCH_TOO_SMALL",
        ROOT,
        re.compile(
            r"block_size \((?P<block_size>\d+)\) must be <= max_num_batched_tokens \((?P<max_num_batched_tokens>\d+)\)|"
            r"max_num_batched_tokens \((?P<batched_tokens>\d+)\) is smaller than (?:max_model_len|the block size) "
            r"\((?P<smallest>\d+)\)"
        ),
        "A block of this model has {block_size} tokens, and a batch may hold only {max_num_batched_tokens}.",
        "Set max_num_batched_tokens to at least {block_size} ({suggested_batched_tokens} is usual). The block's size follows from "
        "the model: do not set --block-size.",
        phase=CONFIG,
    ),
    Rule(
        "ENGINE.CONTEXT_TOO_LONG",
        ROOT,
        re.compile(
            r"max_model_len \((?P<max_model_len>\d+)\) is greater than the derived max_model_len "
            r"\([\w.=]*?(?P<derived_max_model_len>\d+)"
        ),
        "A context of {max_model_len} tokens is asked for; the model knows {derived_max_model_len}.",
        "Set max_model_len to at most {derived_max_model_len}.",
        phase=CONFIG,
    ),
    Rule(
        "ENGINE.NOT_DIVISIBLE",
        ROOT,
        re.compile(
            r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tensor_parallel>\d+)\)|"
            r"output_partition_size = (?P<partition>\d+) (?:is )?not divisible by (?:weight quantization )?block_n = (?P<block_n>\d+)|"
            r"(?:is not divisible by|must be divisible by) (?:tp_size|tensor_model_parallel_size|tensor parallel size)\b"
        ),
        "The model cannot be split over this number of ranks.",
        "Set the tensor parallel size to a divisor of the model's attention heads, so that each rank's part is a multiple of the "
        "quantisation's block.",
        phase=CONFIG,
    ),
    Rule(
        "ENGINE.ARGUMENT_REFUSED",
        ROOT,
        re.compile(
            r"error: (?P<complaint_text>unrecognized arguments: .*|argument -.*|ambiguous option: .*|the following arguments .*)|"
            r"(?P<parser_text>invalid (?:tool call|reasoning) parser: .*)"
        ),
        "The engine in this image refuses an argument: {complaint_text}",
        "Correct the argument, or use an image whose engine knows it.",
        phase=CONFIG,
        next_candidate=True,
    ),
    Rule(
        "ENGINE.REMOTE_CODE_NEEDED",
        ROOT,
        re.compile(
            r"contains custom code which must be executed|(?:set|pass|using) (?:the option )?`?trust_remote_code=True`?"
        ),
        "The model wants to run code of its own.",
        "Read that code before you allow it with --trust-remote-code.",
        phase=CONFIG,
    ),
)

IMAGE_RULES = (
    Rule(
        "ENGINE.RAY_MISSING",
        ROOT,
        re.compile(
            r"Unable to load Ray|Failed to import Ray|No module named 'ray'|Using Ray backend requires installation of ray|"
            r"exec: \"ray\": executable file not found|(?:^|[\s:])ray: (?:command )?not found"
        ),
        "The image has no Ray.",
        "Use an image with Ray, the same on all hosts (newer images of vLLM have none), or the backend mp "
        "(--distributed-executor-backend mp with --nnodes), which needs none.",
        phase=CONFIG,
        any_level=True,
        next_candidate=True,
    ),
    Rule(
        "ENGINE.RAY_MISSING",
        GENERIC,
        re.compile(
            r"Tensor parallel size \((?P<tensor_parallel>\d+)\) cannot be larger than the number of available GPUs \((?P<gpus>\d+)\)|"
            r"World size \((?P<world_size>\d+)\) is larger than the number of available GPUs \((?P<local_gpus>\d+)\)"
        ),
        "The engine looked for all GPUs on its own host only: it does not run over Ray. Newer vLLM does so when the image has no Ray "
        "or Ray was not asked for.",
        "Set --distributed-executor-backend ray, in an image with Ray, or use the backend mp on all hosts.",
        phase=CONFIG,
        certain=False,
        next_candidate=True,
    ),
    Rule(
        "ENGINE.WRONG_PLATFORM",
        ROOT,
        re.compile(
            r"exec format error|does not match the detected host platform \((?P<platform_text>[^)]*)\).*no specific platform"
        ),
        "The image is made for another processor.",
        "Pull the image for linux/arm64.",
        phase=CONFIG,
        any_level=True,
        next_candidate=True,
        unless=re.compile(r"^WARNING|warning", re.IGNORECASE),
    ),
    Rule(
        "ENGINE.NO_KERNEL",
        ROOT,
        re.compile(
            r"no kernel image is available for execution|cudaErrorNoKernelImageForDevice|"
            r"ptxas fatal *: Value '(?P<ptxas_arch>sm_\w+)' is not defined|not supported on (?:this GPU|compute capability|SM ?12)|"
            r"is not compatible with the current PyTorch installation|"
            r"(?:Unsupported|unsupported) (?:gpu|GPU|CUDA|compute) (?:arch|architecture|capability)"
        ),
        "The image has no code for this GPU (compute capability 12.1, sm_121){build}.",
        "Use an image for arm64 built with CUDA 13 for sm_121 (12.1a). The versions of CUDA on the host do not matter.",
        next_candidate=True,
    ),
    Rule(
        "ENGINE.NO_KERNEL",
        ROOT,
        re.compile(r"cutlass\w*.*(?:Error Internal|Invalid status|ErrorInternal)|RuntimeError: Error Internal"),
        "A CUTLASS kernel of this image does not run on this GPU: it was built for 12.0, not for 12.1{build}. This is neither memory "
        "nor NCCL, and eager mode does not help.",
        "Use an image built for 12.1a, or set VLLM_TEST_FORCE_FP8_MARLIN=1 to take other kernels.",
        next_candidate=True,
    ),
    Rule(
        "ENGINE.DRIVER_TOO_OLD",
        ROOT,
        re.compile(
            r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|"
            r"provided PTX was compiled with an unsupported toolchain|cudaErrorUnsupportedPtxVersion|"
            r"forward compatibility was attempted on non supported HW"
        ),
        "The driver of the host is older than the CUDA of the image needs.",
        "Use an image with an older CUDA, or update the driver of the hosts.",
        next_candidate=True,
    ),
    Rule(
        "ENGINE.NO_GPU",
        ROOT,
        re.compile(
            r"No CUDA GPUs are available|Found no NVIDIA driver|Failed to infer device type|libcuda\.so\.1: cannot open|"
            r"could not select device driver .* with capabilities|nvidia-container-cli: .*error|CUDA unknown error|"
            r"cudaErrorNoDevice|CUDA_ERROR_NO(?:T_INITIALIZED|_DEVICE)|unresolvable CDI devices|"
            r"no CUDA-capable device is detected|Unknown runtime specified nvidia"
        ),
        "The container sees no GPU.",
        "Give the container the GPU (--gpus all or CDI) and see that nvidia-smi works on the host.",
        phase=CONFIG,
    ),
    Rule(
        "ENGINE.GPU_FAULT",
        ROOT,
        re.compile(
            r"NVRM: Xid \([^)]*\): (?P<xid>\d+)|an illegal memory access was encountered|uncorrectable ECC|unspecified launch failure|"
            r"GPU has fallen off the bus|device-side assert triggered|cudaErrorIllegalAddress"
        ),
        "The GPU or a kernel on it failed.",
        "Start once more. If it comes again: another image; if nvidia-smi does not answer either: reboot the host.",
        next_candidate=True,
    ),
    Rule(
        "ENGINE.QUANTIZATION_UNKNOWN",
        ROOT,
        re.compile(
            r"Unknown quantization method: '?(?P<method>[\w-]+)|quantization method '?(?P<method_name>[\w-]+)'? (?:is )?not supported|"
            r"(?P<weights_method>[\w-]+) quantization is (?:currently )?not supported"
        ),
        "The engine in this image cannot serve this quantisation ({method}) on this GPU.",
        "Use an image whose engine can, or another quantisation of the model.",
        phase=CONFIG,
        next_candidate=True,
    ),
    Rule(
        "ENGINE.ENGINE_MISSING",
        ROOT,
        re.compile(
            r"exec: \"(?:vllm|python3?|sglang)\": executable file not found|(?:^|[\s:])(?:vllm|sglang): (?:command )?not found|"
            r"No module named '?(?:vllm|sglang)(?:\.entrypoints[\w.]*)?'?$|No module named sglang\.launch_server"
        ),
        "The image has no engine, or not where it is looked for.",
        "Use an image of vLLM or SGLang (registry_probe says what an image holds).",
        phase=CONFIG,
        any_level=True,
        next_candidate=True,
    ),
    Rule(
        "ENGINE.IMAGE_MISSING",
        ROOT,
        re.compile(
            r"Unable to find image '(?P<image_text>[^']+)' locally|No such image: (?P<no_image_text>\S+)|manifest unknown|"
            r"pull access denied|repository does not exist"
        ),
        "The image is not on this host{where}.",
        "Stage it: a worker gets it from the head, by the same id.",
        phase=CONFIG,
        any_level=True,
        survived=re.compile(r"Status: Downloaded newer image|API server version|non-default args"),
    ),
    Rule(
        "ENGINE.DEVICE_MISSING",
        ROOT,
        re.compile(r"error gathering device information while adding custom device \"(?P<device_text>[^\"]+)\""),
        "The host{where} has no device {device_text}.",
        "Load its driver, or take the device off the list of devices that containers get.",
        phase=CONFIG,
        any_level=True,
    ),
    Rule(
        "ENGINE.COMPILE_FAILED",
        GENERIC,
        re.compile(
            r"ninja: build stopped|Ninja (?:is required|build failed)|BackendCompilerFailed|InductorError|torch\._inductor\.exc|"
            r"triton\.\S*CompilationError|PassManager::run failed|Error compiling objects for extension|nvcc fatal"
        ),
        "A kernel could not be compiled for this GPU.",
        "Use another image. Empty caches of compilers (vLLM, Triton, FlashInfer) that come from another image.",
        phase="profile",
        next_candidate=True,
    ),
    Rule(
        "ENGINE.CRASHED",
        GENERIC,
        re.compile(
            r"Fatal Python error: (?P<complaint_text>.*)|(?P<signal_text>Segmentation fault|SIGSEGV|SIGABRT|SIGBUS|SIGILL|Bus error|"
            r"Illegal instruction|core dumped)|(?P<native_text>terminate called after throwing an instance of .*)"
        ),
        "A process of the engine{where} crashed in phase {phase}: {complaint_text}.",
        "Use another image: code of this one does not run on this host. What stands above may say more.",
        next_candidate=True,
    ),
    Rule(
        "ENGINE.BROKEN_IMPORT",
        GENERIC,
        re.compile(
            r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'|"
            r"ImportError: (?:\S*/)?(?P<library_text>[\w.+-]+\.so[\w.]*): (?:cannot open shared object file|undefined symbol)|"
            r"ImportError: cannot import name '(?P<name>\w+)' from (?:partially initialized module )?'(?P<source>[\w.]+)'|"
            r"OSError: (?P<missing_library_text>lib[\w.+-]+\.so[\w.]*): (?:cannot open|undefined)|undefined symbol: (?P<symbol>\w+)"
        ),
        "Something in the image does not fit together: {import_text}.",
        "Use another image. What is mounted over its Python folders counts, too.",
        phase=CONFIG,
        next_candidate=True,
    ),
)

WEIGHT_RULES = (
    Rule(
        "ENGINE.WEIGHTS_GATED",
        ROOT,
        re.compile(
            r"GatedRepoError|Cannot access gated repo|Access to model (?P<repository>[\w./-]+) is restricted|"
            r"(?:401|403) Client Error.*huggingface|You are trying to access a gated repo|RepositoryNotFoundError: 401"
        ),
        "The weights are behind a licence or a login at Hugging Face.",
        "Accept the licence and download with a token once, then stage the folder: the serving containers get no token and stay "
        "offline.",
        phase=CONFIG,
        more=(re.compile(r"for url https?://\S+?/(?P<repository>[\w.-]+/[\w.-]+)/resolve"),),
    ),
    Rule(
        "ENGINE.WEIGHTS_OFFLINE",
        ROOT,
        re.compile(
            r"OfflineModeIsEnabled(?:: Cannot reach \S*?/(?:api/models/)?(?P<repository>[\w.-]+/[\w.-]+):)?|LocalEntryNotFoundError|"
            r"outgoing traffic has been disabled|offline mode is enabled|"
            r"We couldn't connect to 'https://huggingface\.co'"
        ),
        "The weights are not, or not completely, on this host, and the container is offline.",
        "Stage the complete folder on all hosts and give its path instead of the repository's name.",
        phase=CONFIG,
    ),
    Rule(
        "ENGINE.MODEL_MISSING",
        ROOT,
        re.compile(
            r"Invalid repository ID or local directory specified: *'?(?P<folder_text>[^'\s]*)|"
            r"(?P<folder_of_text>/[^\s']+) does not appear to have (?:a file|files) named \(?'?(?P<file_text>[\w.-]+)|"
            r"Repo id must be in the form .*?: '(?P<repo_text>[^']+)'|"
            r"Cannot find any (?:safetensors )?model weights with `(?P<weights_of_text>[^`]+)`|"
            r"Can't load (?:the configuration of|tokenizer for) '(?P<config_of_text>[^']+)'|"
            r"(?:FileNotFoundError|OSError): .*?No such file or directory: ['\"]?(?P<path_text>[^'\"]*"
            r"(?:\.safetensors|config\.json|tokenizer[\w.]*|index\.json|/models?/[^'\"]*))|"
            r"No supported config format found in '?(?P<format_text>[^'\s]+)|"
            r"(?P<no_folder_text>/\S+) (?:is not a local folder|does not exist)|"
            r"(?:bind source path does not exist|invalid mount config).*?: (?P<mount_text>/\S+)"
        ),
        "The model is missing or incomplete{where}: {folder_text}.",
        "Stage the complete folder at the same path on every host; each rank reads its own copy.",
        phase=LOAD,
    ),
    Rule(
        "ENGINE.WEIGHTS_DAMAGED",
        ROOT,
        re.compile(
            r"SafetensorError: (?P<complaint_text>.*)|Error while deserializing header|MetadataIncompleteBuffer|"
            r"There is no module or parameter named|KeyError: '(?:model|language_model|visual|layers|lm_head|mtp)\.[\w.]+'|"
            r"Following weights were not initialized from checkpoint|Attempted to load weight \(.*\) into parameter|"
            r"(?:Bus error|SIGBUS).*safetensors"
        ),
        "The weights{where} are damaged or belong to another model.",
        "Compare the files with the head's and stage them again.",
        phase=LOAD,
    ),
    Rule(
        "ENGINE.PERMISSION_DENIED",
        GENERIC,
        re.compile(r"PermissionError: \[Errno 13\] Permission denied: '(?P<path_text>[^']+)'"),
        "The container may not read or write {path_text}{where}.",
        "Give the user of the container the right to it.",
    ),
    Rule(
        "ENGINE.DISK_FULL",
        GENERIC,
        re.compile(r"No space left on device|Disk quota exceeded"),
        "A disk is full{where}.",
        "Make room where the line says; caches of compilers and of Docker grow with each image.",
        unless=re.compile(r"/dev/shm|nccl-|shmutils|shared memory", re.IGNORECASE),
    ),
)

PORT_RULES = (
    Rule(
        "ENGINE.PORT_IN_USE",
        ROOT,
        re.compile(
            r"error while attempting to bind on address \('(?P<address_text>[^']*)', (?P<port>\d+)[^)]*\).*(?:already in use)|"
            r"\[Errno 98\] (?:Address already in use|error while attempting to bind)(?:.*?port (?P<some_port>\d+))?"
        ),
        "The port of the API{port_text} is taken{holder_text}.",
        "Find who listens (ss -ltnp) and stop it, or set another port. A container with a restart policy comes back by itself.",
        phase=SERVE,
        unless=re.compile(r"EADDRINUSE|ray|gcs", re.IGNORECASE),
    ),
    Rule(
        "ENGINE.RENDEZVOUS_PORT_IN_USE",
        ROOT,
        re.compile(
            r"server socket has failed to listen on any local network address\. port: (?P<port>\d+)|"
            r"The server socket has failed to (?:listen|bind).*?:(?P<bind_port>\d+)|code: -98, name: EADDRINUSE|"
            r"(?:ZMQError|zmq\.error\.ZMQError): Address already in use \(addr='tcp://[^:]*:(?P<zmq_port>\d+)"
        ),
        "Port {port}, at which the ranks find each other, is taken. This is not the API's port.",
        "A rank of an earlier start still runs: end it (its containers on all hosts), then start again.",
        phase="join",
    ),
    Rule(
        "ENGINE.RAY_PORT_IN_USE",
        ROOT,
        re.compile(
            r"Ray is trying to start at \S*?:(?P<port>\d+)\b.*(?:already running|occupied|in use)|"
            r"(?:gcs|raylet|node_manager|grpc_server).*(?:Address already in use|Failed to bind|port (?P<bind_port>\d+) is (?:already )?in use)|"
            r"Port (?P<used_port>\d+) (?:is )?(?:already )?(?:in use|occupied|not available).*[Rr]ay|"
            r"address already in use.*6379",
            re.IGNORECASE,
        ),
        "Port {port} of Ray is taken: another Ray runs on this host.",
        "Stop the other Ray (ray stop --force in its container, or its unit).",
        phase="join",
    ),
    Rule(
        "ENGINE.SHM_TOO_SMALL",
        ROOT,
        re.compile(
            r"Error while creating shared memory segment (?P<segment_text>\S+) \(size (?P<segment_bytes>\d+)\)|"
            r"failed to extend (?P<extend_text>/dev/shm/\S+) to (?P<extend_bytes>\d+) bytes|"
            r"Insufficient space in /dev/shm.*?: (?P<required_mib>\d+) MiB required, (?P<free_mib>\d+) MiB free|"
            r"/dev/shm.*No space left on device|No space left on device.*/dev/shm|"
            r"unable to (?:write to|mmap|open) (?:file|shared memory).*(?:torch_|/dev/shm)|insufficient shared memory \(shm\)"
        ),
        '/dev/shm of the container is too small or full{shm_text}. "No space left on device" means /dev/shm, not a disk.',
        "Run the container with --ipc=host or --shm-size 16g. If it is large already, remove stale /dev/shm/nccl-* files.",
        phase="join",
        any_level=True,
    ),
)

RULES = (*CONFIG_RULES, *IMAGE_RULES, *WEIGHT_RULES, *PORT_RULES)
