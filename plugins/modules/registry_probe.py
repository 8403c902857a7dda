#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: registry_probe
short_description: Check whether a container image can serve a model
version_added: 0.1.0
description:
  - Looks into images for an inference engine (vLLM or SGLang), reads which model architectures it knows, and compares this
    and the versions of what is installed with what is asked for.
  - Nothing of the image runs unless O(method=import) asks for it, and no GPU is needed. The image may be for another platform
    than that of the host, and with O(source=remote) it need not be there at all.
  - The engine is found where the image's own Python would import it from - in an environment of its own, below a Python path,
    or installed from a source tree - and not by the name of a folder.
  - If an architecture is not in the registry of vLLM, the image is searched for plugins that may add it.
  - As C(root) on a Docker Engine with the storage driver overlay2 all this takes less than 0.1 s. Otherwise a container is
    created from the image, never started, read from and removed. That takes up to 1 s, and the search for plugins some seconds
    per 10 GB of Python packages.
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
  - dgxspark.serving.attributes.actiongroup_spark
  - dgxspark.serving.engine
  - dgxspark.serving.findings
  - dgxspark.serving.registry
options:
  image:
    description: References or ids of images.
    type: list
    elements: str
    required: true
  architecture:
    description: Names of architectures, as C(architectures) in the C(config.json) of a model has them.
    type: list
    elements: str
    default: []
  model_path:
    description:
      - A model folder or C(config.json) on the host. Its architectures are checked in addition to O(architecture), and whether
        its C(model_type) is known.
    type: path
  engine:
    description: The engine to look for. With V(auto) it is vLLM, or SGLang in images without vLLM.
    type: str
    choices: [auto, vllm, sglang]
    default: auto
  source:
    description:
      - Where the image is. V(engine) is the Docker Engine of the host.
      - V(remote) is the registry that the reference names. Nothing is pulled. The layers are read, the newest first, until the
        answer is known. A yes is known early, a no takes all layers, and so does an image with SGLang unless O(engine=sglang).
        What is read to its end is compared with its digest; a layer that is read in part cannot be.
      - A registry is reached as Docker does it, with the proxies of the environment, with the login of C(docker login) and with
        the certificates in C(/etc/docker/certs.d).
    type: str
    choices: [engine, remote]
    default: engine
  method:
    description:
      - How it is found out. V(static) reads files and runs nothing of the image.
      - V(import) reads the files as well, then runs the Python of the image, which takes about 10 s, and asks the engine itself,
        with the plugins of the image loaded. It runs without network and capabilities, cannot write to the image and has 6 GiB
        of memory and O(timeout). If both answers differ, this is a finding. If Docker has the NVIDIA runtime, it sees the GPUs.
    type: str
    choices: [static, import]
    default: static
  platform:
    description: The platform that the image must have, such as V(linux/arm64). The default is that of the host.
    type: str
  require:
    description:
      - What must be in the image. The name of a Python package, of V(python), V(cuda) or V(nccl), and V(true) (is there),
        V(false) (is not there) or a version requirement such as V(>=0.17,<0.20).
      - Versions are ordered as in PEP 440. Pre-releases count, so V(0.17.1rc1) meets V(>=0.17), and local parts such as
        V(+cu130) are ignored. A development build that does not say to which release it belongs gives a warning.
      - What is not met is an error.
    type: dict
    default: {}
  prefer:
    description: As O(require), but what is not met is a warning.
    type: dict
    default: {}
  reasoning_parser:
    description: A reasoning parser that the engine must have.
    type: str
  tool_call_parser:
    description: A tool call parser that the engine must have.
    type: str
  gpu_arch:
    description:
      - A CUDA compute capability, such as V(12.1). It is checked whether the image has code for it, or, where that cannot be read,
        whether the CUDA toolkit that torch was built with knows it.
      - As C(root) on a Docker Engine with the storage driver overlay2, it is checked for which architectures the libraries of vLLM
        and torch have code. O(method=import) asks torch. Otherwise what the image says of itself (C(TORCH_CUDA_ARCH_LIST)) counts.
    type: str
  timeout:
    description: Seconds that reading an image from a registry, or running its Python, may take.
    type: int
    default: 600
  cache:
    description:
      - Whether answers are kept on the host and used again for the same question about an image with the same id. At most 64
        are kept. In check mode none is added.
    type: bool
    default: true
  cache_path:
    description: Folder of the kept answers. The default is C(/var/lib/dgxspark/cache) for C(root), C(~/.cache/dgxspark) otherwise.
    type: path
author:
  - dgxspark.serving contributors (@dgxspark)
seealso:
  - module: dgxspark.serving.gpu_memory_check
  - module: dgxspark.serving.nccl_ib_check
"""

EXAMPLES = r"""
- name: See whether an image knows an architecture
  dgxspark.serving.registry_probe:
    image: vllm-node
    architecture: Qwen3_5MoeForConditionalGeneration
  register: probe

- name: Find the first image that can serve a model over Ray, and fail if there is none
  dgxspark.serving.registry_probe:
    image:
      - vllm-node:nightly
      - vllm-node:0.17
    model_path: /srv/models/qwen3.5-122b-a10b-fp8
    require:
      ray: true
      vllm: ">=0.17"
    prefer:
      nccl: ">=2.30.4"
    reasoning_parser: qwen3
    tool_call_parser: qwen3_coder
    gpu_arch: "12.1"
  register: probe
  failed_when: not probe.suitable

- name: See whether an image in a registry is worth pulling
  dgxspark.serving.registry_probe:
    image: vllm/vllm-openai:v0.17.1
    source: remote
    platform: linux/arm64
    architecture: Qwen3_5MoeForConditionalGeneration

- name: Ask the engine itself, with its plugins
  dgxspark.serving.registry_probe:
    image: vllm-node
    architecture: RavenForCausalLM
    method: import

- name: List all architectures that an image knows
  dgxspark.serving.registry_probe:
    image: vllm-node
  register: probe
"""

RETURN = r"""
msg:
  description: A summary for a terminal.
  returned: always
  type: str
  sample: |-
    vllm-node:0.14: not suitable
      vllm 0.14.1, linux/arm64, python 3.12.3, torch 2.9.1, cuda 13.0,
        transformers 4.57.6, ray 2.53.0, nccl 2.28.9
      error: vLLM 0.14.1 does not know Qwen3_5MoeForConditionalGeneration; ...
suitable:
  description: The images without a finding of severity error, in the order given.
  returned: always
  type: list
  elements: str
  sample: [vllm-node:0.17]
images:
  description: What was found, an entry per image in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    image:
      description: The reference as given.
      type: str
      sample: vllm-node:0.17
    id:
      description: Id of the image, the way to compare images of several hosts. Empty if it is not there.
      type: str
    bytes_read:
      description: With O(source=remote), what the registry has sent.
      type: int
      sample: 41943040
    size:
      description: With O(source=remote), the size of all layers in the registry, compressed.
      type: int
      sample: 8589934592
    complete:
      description: Whether all layers were read. If not, the answer was known before. What older layers add to RV(images[].versions)
        and RV(images[].nccl_conf) is then missing.
      type: bool
    cached:
      description: Whether the answer was kept from an earlier run.
      type: bool
    entrypoint:
      description: Entrypoint of the image.
      type: list
      elements: str
    user:
      description: User as whom the image runs; empty for C(root).
      type: str
    gpu_archs:
      description: GPU architectures for which the engine and torch have code, if O(gpu_arch) is given and it can be read, and
        those for which the image says to be built (C(environment)).
      type: dict
      sample: {"torch": ["sm_90", "sm_120"], "environment": ["12.1a"]}
    digests:
      description: Digests under which registries know the image. Images built on the host have none.
      type: list
      elements: str
    present:
      description: Whether the Docker Engine or the registry has the image.
      type: bool
    platform:
      description: Platform of the image.
      type: str
      sample: linux/arm64
    engine:
      description: V(vllm) or V(sglang); empty if there is none.
      type: str
      sample: vllm
    engine_version:
      description: Version of the engine; empty if it does not say.
      type: str
      sample: 0.17.1
    engine_path:
      description: Folder of the engine's Python package in the image.
      type: str
      sample: /usr/local/lib/python3.12/dist-packages/vllm
    editable:
      description: Whether the engine is imported from a source tree.
      type: bool
    versions:
      description: Versions of what is installed; V(null) for what is not there or does not say. Has C(python), C(torch),
        C(cuda) (with which torch was built), C(transformers), C(ray), C(nccl), C(vllm), C(sglang), C(flashinfer), C(triton) and
        what O(require) and O(prefer) name.
      type: dict
      sample: {"python": "3.12.3", "ray": null, "vllm": "0.17.1"}
    architectures:
      description: A dictionary per architecture that was asked for.
      type: dict
      contains:
        supported:
          description: Whether the engine can serve it. V(null) if the files cannot tell.
          type: bool
        kind:
          description: V(model), V(draft) (for speculative decoding only), V(removed) (known once), V(plugin), or V(null).
          type: str
        last_version:
          description: For V(removed), the last version that knew it.
          type: str
        plugin:
          description: For V(plugin), the plugin as the engine names it.
          type: str
      sample: {"Qwen3_5MoeForConditionalGeneration": {"kind": "model", "supported": true}}
    closest:
      description: For each architecture that is not known, the known one with the most similar name, or an empty string.
      type: dict
      sample: {"Qwen3_5MoeForConditionalGeneration": "Qwen3VLMoeForConditionalGeneration"}
    known_architectures:
      description: All architectures that the engine knows, with their kind. Only if none was asked for, otherwise empty.
      type: dict
      sample: {"LlamaForCausalLM": "model"}
    plugins:
      description: Plugins in the image that may add architectures, if they were searched for.
      type: dict
      sample: {"register_raven": "raven_vllm:register (vllm-raven-plugin 0.1)"}
    nccl_conf:
      description: Settings of NCCL in C(/etc/nccl.conf) and C(~/.nccl.conf) of the image.
      type: dict
      sample: {"NCCL_IB_USE_INLINE": "1"}
    reasoning_parsers:
      description: Names of the reasoning parsers.
      type: list
      elements: str
      sample: [deepseek_r1, qwen3]
    tool_call_parsers:
      description: Names of the tool call parsers.
      type: list
      elements: str
      sample: [hermes, qwen3_coder]
    suitable:
      description: Whether there is no finding of severity error.
      type: bool
    findings:
      description: What speaks against the image, worst first.
      type: list
      elements: dict
    duration_ms:
      description: How long it took.
      type: int
      sample: 180
findings:
  description: The findings of all images.
  returned: always
  type: list
  elements: dict
  sample:
    - id: REGISTRY.ARCHITECTURE_UNKNOWN
      severity: error
      subject: vllm-node:0.14
      message: vLLM 0.14.1 does not know Qwen3_5MoeForConditionalGeneration; the closest it knows is Qwen3VLMoeForConditionalGeneration.
      remedy: Use an image with a newer vLLM. A newer transformers does not help.
      evidence: ""
"""

import os
import textwrap
from time import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_python as host_python
from ansible_collections.dgxspark.serving.plugins.module_utils._check_module import finish
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import findings_argument_spec
from ansible_collections.dgxspark.serving.plugins.module_utils._image_files import remove_stale_probes
from ansible_collections.dgxspark.serving.plugins.module_utils._image_probe import Request
from ansible_collections.dgxspark.serving.plugins.module_utils._platform import Platform
from ansible_collections.dgxspark.serving.plugins.module_utils._probe_cache import default_folder
from ansible_collections.dgxspark.serving.plugins.module_utils._probe_wishes import BadOption, wishes_of
from ansible_collections.dgxspark.serving.plugins.module_utils._registry_login import docker_config_path
from ansible_collections.dgxspark.serving.plugins.module_utils._registry_probe import (
    EngineProbe,
    RemoteProbe,
    Result,
    Settings,
    cache_of,
    probe_all,
)

# 80 columns without the indentation of Ansible's own output.
_SUMMARY_WIDTH = 72
_SUMMARY_VERSIONS = ("python", "torch", "cuda", "transformers", "ray", "nccl")


def summary(entries: list[dict[str, Any]]) -> str:
    """A few lines per image that fit a terminal of 80 columns and 24 lines as long as there are few images."""
    lines = []
    for entry in entries:
        lines.append(f"{entry['image']}: {'suitable' if entry['suitable'] else 'not suitable'}")
        if entry["engine"]:
            versions = [f"{name} {entry['versions'].get(name) or '-'}" for name in _SUMMARY_VERSIONS]
            about = [f"{entry['engine']} {entry['engine_version'] or '?'}", entry["platform"], *versions]
            lines += _wrapped("  ", ", ".join(about))
        for name, found in entry["architectures"].items():
            if found["supported"]:
                lines += _wrapped("  ", f"{name}: supported")
        for finding in entry["findings"]:
            lines += _wrapped("  ", f"{finding['severity']}: {finding['message']}")
            if finding["remedy"]:
                lines += _wrapped("    -> ", finding["remedy"])
    return "\n".join(lines)


def _wrapped(start: str, text: str) -> list[str]:
    further = " " * (len(start) + 2)
    return textwrap.wrap(
        text,
        _SUMMARY_WIDTH,
        initial_indent=start,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def settings_of(module: AnsibleModule) -> Settings:
    """How the options want images to be looked at."""
    params = module.params
    if params["platform"]:
        try:
            Platform.parse(params["platform"])
        except ValueError as error:
            raise BadOption(f"platform: {error}") from error
    if params["source"] == "remote" and params["method"] == "import":
        raise BadOption("method: import runs the image, which a registry cannot do: pull it and take source: engine")
    if params["timeout"] < 1:
        raise BadOption("timeout: give a number of seconds from 1 on")
    return Settings(
        docker_host=params["docker_host"],
        method=params["method"],
        platform=params["platform"] or "",
        timeout=params["timeout"],
        cache_folder=(params["cache_path"] or default_folder()) if params["cache"] else "",
        cache_writable=not module.check_mode,
        docker_config=docker_config_path(os.environ),
        username=params["registry_username"] or "",
        password=params["registry_password"] or "",
        ca_path=params["registry_ca_path"] or "",
        plain_http=params["registry_plain_http"],
    )


def run(module: AnsibleModule) -> list[Result]:
    """Probe all images. Raises BadOption and EngineUnavailable."""
    params = module.params
    wishes = wishes_of(params)
    settings = settings_of(module)
    request = Request(
        engine=params["engine"],
        architectures=wishes.architectures,
        packages=tuple(dict.fromkeys([*wishes.require, *wishes.prefer])),
        model_types=bool(wishes.model_type),
        gpu_archs=bool(wishes.gpu_arch),
    )
    if params["source"] == "remote":
        host_python.require_requests(module, "to talk to a registry of images")
        return probe_all(RemoteProbe(settings, request, wishes, cache_of(settings)), params["image"], None)
    host_python.require_docker_sdk(module)

    def connect() -> Any:
        return host_python.connect_engine(params["docker_host"])

    client = connect()
    remove_stale_probes(client, time())
    return probe_all(EngineProbe(settings, request, wishes, cache_of(settings), client), params["image"], connect)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "list", "elements": "str", "required": True},
            "architecture": {"type": "list", "elements": "str", "default": []},
            "model_path": {"type": "path"},
            "engine": {"type": "str", "choices": ["auto", "vllm", "sglang"], "default": "auto"},
            "source": {"type": "str", "choices": ["engine", "remote"], "default": "engine"},
            "method": {"type": "str", "choices": ["static", "import"], "default": "static"},
            "platform": {"type": "str"},
            "require": {"type": "dict", "default": {}},
            "prefer": {"type": "dict", "default": {}},
            "reasoning_parser": {"type": "str"},
            "tool_call_parser": {"type": "str"},
            "gpu_arch": {"type": "str"},
            "timeout": {"type": "int", "default": 600},
            "cache": {"type": "bool", "default": True},
            "cache_path": {"type": "path"},
            "registry_username": {"type": "str"},
            "registry_password": {"type": "str", "no_log": True},
            "registry_ca_path": {"type": "path"},
            "registry_plain_http": {"type": "bool", "default": False},
            **host_python.docker_argument_spec(),
            **findings_argument_spec(),
        },
        required_together=[("registry_username", "registry_password")],
        supports_check_mode=True,
    )
    try:
        results = run(module)
    except (BadOption, host_python.EngineUnavailable) as error:
        module.fail_json(msg=str(error))
    entries = [entry for entry, _findings in results]
    finish(
        module,
        [finding for _entry, findings in results for finding in findings],
        changed=False,
        images=entries,
        suitable=[entry["image"] for entry in entries if entry["suitable"]],
        msg=summary(entries),
    )


if __name__ == "__main__":
    main()
