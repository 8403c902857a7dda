#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_memory_check
short_description: Check whether a model finds room in GPU memory, and who holds it
version_added: 0.1.0
description:
  - Reads the memory of the GPUs of a host, traces each process that holds some of it to its container, systemd unit and
    user, and says whether what is asked for would fit.
  - On a DGX Spark host and GPU share one memory. C(nvidia-smi) has no numbers for it, so the numbers come from
    C(/proc/meminfo). The page cache counts as used for CUDA and for older versions of vLLM, and as available for newer ones.
    The module reports both.
  - Without rights to talk to the Docker Engine, holders in containers are reported with the id of the container only.
  - On a GPU with memory of its own all sizes count per GPU.
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.actiongroup_spark
  - dgxspark.serving.findings
attributes:
  check_mode:
    support: full
    details:
      - Only O(drop_caches=true) changes something. In check mode the page cache stays.
  diff_mode:
    support: none
options:
  required_gib:
    description: Memory in GiB that must be available, beside O(reserve_gib).
    type: float
  reserve_gib:
    description:
      - Memory in GiB that must stay free for the system.
      - RV(max_utilization) leaves it as well. A O(utilization) that is given is judged as the engine does, without it.
    type: float
    default: 0.0
  utilization:
    description:
      - Check whether vLLM would start with this C(--gpu-memory-utilization).
      - This share of the whole memory must be free, in the eyes of older versions of vLLM, too.
    type: float
  drop_caches:
    description:
      - Write dirty pages to disk and drop the page cache before looking. Needs C(root).
      - No data is lost, but files are read from disk again.
    type: bool
    default: false
  settle_seconds:
    description:
      - Wait at most so long for memory that is being released.
      - With O(required_gib) or O(utilization) the wait ends as soon as they fit, otherwise as soon as the free memory does not
        change any more.
    type: float
    default: 0.0
  nvidia_smi:
    description:
      - The C(nvidia-smi) to ask, a path or a name that is looked up in E(PATH).
      - Where the host has C(nvidia-ml-py), NVML is asked directly, with the same results, unless another program is named here.
    type: str
    default: nvidia-smi
  timeout:
    description: Seconds to wait for an answer of C(nvidia-smi), which hangs when the driver does.
    type: float
    default: 30.0
  proc_root:
    description: Where the C(proc) file system of the host is.
    type: path
    default: /proc
  docker_host:
    description: Address of the Docker Engine that is asked for the names of containers.
    type: str
    default: unix:///var/run/docker.sock
author:
  - dgxspark.serving contributors (@dgxspark)
seealso:
  - module: dgxspark.serving.registry_probe
  - module: dgxspark.serving.nccl_ib_check
"""

EXAMPLES = r"""
- name: See who holds GPU memory
  dgxspark.serving.gpu_memory_check:
  register: memory

- name: Fail unless vLLM would start with a utilization of 0.80
  dgxspark.serving.gpu_memory_check:
    utilization: 0.80
    fail_on: [error, warning]

- name: Drop the page cache, and wait up to a minute until 70 GiB are available
  dgxspark.serving.gpu_memory_check:
    required_gib: 70
    reserve_gib: 8
    drop_caches: true
    settle_seconds: 60
  become: true
"""

RETURN = r"""
msg:
  description: A summary for a terminal.
  returned: always
  type: str
  sample: "GPU 0 NVIDIA GB10: 119.70 GiB shared with the host, 108.20 available, 39.70 free"
gpus:
  description: The GPUs of the host.
  returned: always
  type: list
  elements: dict
  contains:
    index:
      description: Number of the GPU.
      type: int
      sample: 0
    uuid:
      description: The GPU's identity; empty if the driver does not tell.
      type: str
      sample: GPU-00000000-1111-2222-3333-444444444444
    name:
      description: Product name.
      type: str
      sample: NVIDIA GB10
    compute_capability:
      description: CUDA compute capability; empty if the driver does not tell.
      type: str
      sample: "12.1"
    memory_model:
      description: V(unified) if host and GPU share one memory, V(dedicated) if the GPU has its own.
      type: str
      sample: unified
    total_gib:
      description: All memory that the GPU can use. V(null) if unknown.
      type: float
      sample: 119.7
    free_gib:
      description: What CUDA reports as free. V(null) if unknown.
      type: float
      sample: 41.0
    used_gib:
      description: What the driver reports as used. V(null) on unified memory, where there is no such number.
      type: float
    busy_percent:
      description: Share of the last second in which the GPU worked. V(null) if unknown.
      type: int
      sample: 3
    mig:
      description: Whether the GPU is divided into instances.
      type: bool
    driver:
      description: Version of the kernel driver.
      type: str
      sample: 580.95.05
memory:
  description: The memory of the host.
  returned: always
  type: dict
  contains:
    total_gib:
      description: All memory.
      type: float
      sample: 119.7
    free_gib:
      description: Memory that is not used for anything, the page cache included.
      type: float
      sample: 41.0
    available_gib:
      description: What programs can get.
      type: float
      sample: 109.0
    reclaimable_gib:
      description: What dropping the page cache would bring.
      type: float
      sample: 68.0
    unexplained_gib:
      description: Used memory that belongs to no process, cache or kernel structure. On unified memory GPU programs and the
        driver hold it. V(null) if the kernel does not report the parts.
      type: float
      sample: 2.1
    cma_total_gib:
      description: Contiguous memory. V(null) if the kernel has none.
      type: float
    cma_free_gib:
      description: Free contiguous memory. V(null) if the kernel has none.
      type: float
    shared_gib:
      description: Shared memory in use, part of the page cache that cannot be dropped.
      type: float
    min_free_gib:
      description: What the kernel keeps for itself (C(vm.min_free_kbytes)). V(null) if it cannot be read.
      type: float
    swap_total_gib:
      description: Swap space.
      type: float
      sample: 16.0
    swap_free_gib:
      description: Free swap space.
      type: float
      sample: 16.0
holders:
  description: Processes with GPU memory, the largest first.
  returned: always
  type: list
  elements: dict
  contains:
    pid:
      description: Number of the process.
      type: int
      sample: 22001
    process:
      description: Name of the program, without arguments.
      type: str
      sample: VLLM::EngineCore
    used_gib:
      description: What it holds. V(null) if the driver does not tell.
      type: float
      sample: 101.83
    gpus:
      description: Numbers of the GPUs.
      type: list
      elements: int
      sample: [0]
    graphics:
      description: Whether it draws, as the programs of a desktop do.
      type: bool
    user:
      description: Whose process it is.
      type: str
      sample: root
    container:
      description: Name of its container; empty if it is in none or if the engine could not be asked.
      type: str
      sample: glm
    container_id:
      description: Id of its container, or empty.
      type: str
    image:
      description: Image of its container, as it was started; or empty.
      type: str
      sample: vllm-node:0.17
    labels:
      description: Labels of its container.
      type: dict
      sample: {"io.dgxspark.serving.managed": "true"}
    systemd_unit:
      description: System unit in which it runs, or which runs its container in the foreground; or empty.
      type: str
      sample: vllm-cluster.service
    orphan:
      description: Whether it is the remaining worker of an engine whose server is gone.
      type: bool
    visible:
      description: V(false) if the driver lists the process and the host does not show it.
      type: bool
unattributed_gib:
  description: GPU memory that is used and that no listed process explains. V(null) if that cannot be known.
  returned: always
  type: float
  sample: 0.0
max_utilization:
  description:
    - Largest C(--gpu-memory-utilization), in steps of 0.01, that leaves O(reserve_gib). Of several GPUs the one with least
      room counts. V(null) if there is no GPU.
    - Where much page cache can be dropped, it is taken as dropped.
  returned: always
  type: float
  sample: 0.82
fits:
  description: Whether what was asked for would fit now. V(null) if nothing was asked for or if there is no GPU.
  returned: always
  type: bool
source:
  description: Who was asked, V(nvml) or V(nvidia-smi). Empty if there was nobody.
  returned: always
  type: str
  sample: nvidia-smi
waited_seconds:
  description: How long it took until the memory had settled.
  returned: always
  type: float
  sample: 2.0
findings:
  description: What the check has to say, worst first.
  returned: always
  type: list
  elements: dict
  sample:
    - id: MEMORY.PAGE_CACHE
      severity: warning
      subject: unified memory
      message: 101.75 GiB (utilization 0.85 of 119.70 GiB) are asked for and 109.00 GiB are available, but only 41.00 GiB are free.
      remedy: Drop the page cache right before the start (drop_caches=true). No process needs to be stopped.
      evidence: available 109.00 GiB, free 41.00 GiB, total 119.70 GiB
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._check_module import finish
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import findings_argument_spec
from ansible_collections.dgxspark.serving.plugins.module_utils._memory_check import (
    MemoryCheck,
    MemoryCheckError,
    memory_arguments,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={**memory_arguments(), **findings_argument_spec()},
        supports_check_mode=True,
    )
    utilization = module.params["utilization"]
    if utilization is not None and not 0 < utilization <= 1:
        module.fail_json(msg=f"utilization is a share of the memory, above 0 and at most 1, not {utilization:g}")
    try:
        results = MemoryCheck(module.params, module.check_mode).run()
    except MemoryCheckError as error:
        module.fail_json(msg=str(error))
    finish(module, **results)


if __name__ == "__main__":
    main()
