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
  - Nothing of the image runs. A container is created from it, never started, read from and removed. No GPU is needed.
  - The engine is found where the image's own Python would import it from - in an environment of its own, below a Python path,
    or installed from a source tree - and not by the name of a folder.
  - If an architecture is not in the registry of vLLM, the image is searched for plugins that may add it. As C(root) on a
    Docker Engine with the storage driver overlay2 this takes no time, otherwise some seconds per 10 GB of Python packages.
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
  - dgxspark.serving.attributes.actiongroup_spark
  - dgxspark.serving.engine
  - dgxspark.serving.findings
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
    description: Where the image is. V(engine) is the local Docker Engine.
    type: str
    choices: [engine]
    default: engine
  method:
    description: How it is found out. V(static) reads files and runs nothing of the image.
    type: str
    choices: [static]
    default: static
  platform:
    description: The platform that the image must have, such as V(linux/arm64). The default is that of the Docker Engine.
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
      - A CUDA compute capability, such as V(12.1). It is checked whether the CUDA toolkit that torch was built with knows it.
      - Which kernels the engine brings for it cannot be read from files.
    type: str
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
    vllm-node:0.14: no
      vLLM 0.14.1, python 3.12.3, torch 2.9.1, cuda 13.0, transformers 4.57.6, ray 2.53.0, nccl 2.28.9
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
    digests:
      description: Digests under which registries know the image. Images built on the host have none.
      type: list
      elements: str
    present:
      description: Whether the Docker Engine has the image.
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

import json
import os
from time import monotonic, time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_python as host_python
from ansible_collections.dgxspark.serving.plugins.module_utils._check_module import finish
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import (
    ERROR,
    Finding,
    as_dicts,
    findings_argument_spec,
    worst_severity,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._image_files import open_image, remove_stale_probes
from ansible_collections.dgxspark.serving.plugins.module_utils._image_probe import Contents, ImageProbe, Request
from ansible_collections.dgxspark.serving.plugins.module_utils._image_verdict import (
    Wishes,
    judge,
    judge_architectures,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._pep440 import Requirement
from ansible_collections.dgxspark.serving.plugins.module_utils._platform import Platform

_SUMMARY_VERSIONS = ("python", "torch", "cuda", "transformers", "ray", "nccl")


class BadOption(Exception):
    """An option that cannot be used; the message names it."""


def read_model_config(path: str) -> dict[str, Any]:
    """The config.json of a model folder, or the file itself."""
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        with open(file, encoding="utf-8") as handle:
            config = json.load(handle)
    except (OSError, ValueError) as error:
        raise BadOption(f"model_path: cannot read {file}: {error}") from error
    if not isinstance(config, dict):
        raise BadOption(f"model_path: {file} is not the configuration of a model")
    return config


def wishes_of(params: dict[str, Any]) -> Wishes:
    """What the options ask for."""
    architectures = list(params["architecture"])
    model_type, remote_code = "", False
    if params["model_path"]:
        config = read_model_config(params["model_path"])
        architectures += [name for name in config.get("architectures") or [] if name not in architectures]
        model_type = config.get("model_type") or ""
        remote_code = "AutoConfig" in (config.get("auto_map") or {})
    for option in ("require", "prefer"):
        for name, wish in params[option].items():
            check_wish(option, name, wish)
    return Wishes(
        architectures=tuple(architectures),
        model_type=model_type,
        remote_code=remote_code,
        require=params["require"],
        prefer=params["prefer"],
        reasoning_parser=params["reasoning_parser"] or "",
        tool_call_parser=params["tool_call_parser"] or "",
        gpu_arch=gpu_architecture(params["gpu_arch"]),
    )


def check_wish(option: str, name: str, wish: Any) -> None:
    if isinstance(wish, bool):
        return
    try:
        Requirement.parse(str(wish))
    except ValueError as error:
        raise BadOption(f"{option}: {name}: {error}") from error


def gpu_architecture(text: str | None) -> tuple[int, int] | None:
    if not text:
        return None
    major, _dot, minor = text.partition(".")
    if not major.isdigit() or not minor.isdigit():
        raise BadOption(f"gpu_arch: write a compute capability like 12.1, not {text!r}")
    return int(major), int(minor)


class RegistryProbe:
    def __init__(self, client: Any, params: dict[str, Any], wishes: Wishes) -> None:
        self.client = client
        self.wishes = wishes
        self.request = Request(
            engine=params["engine"],
            architectures=wishes.architectures,
            packages=tuple(dict.fromkeys([*wishes.require, *wishes.prefer])),
        )
        self.platform = self._platform(params["platform"])

    def _platform(self, wanted: str | None) -> Platform:
        if wanted:
            try:
                return Platform.parse(wanted)
            except ValueError as error:
                raise BadOption(f"platform: {error}") from error
        version = self.client.version()
        return Platform.of(version["Os"], version["Arch"])

    def probe(self, name: str) -> tuple[dict[str, Any], list[Finding]]:
        """(entry of the result, findings) for one image."""
        began = monotonic()
        image = host_python.look_up(self.client.inspect_image, name)
        contents = Contents()
        if image is None:
            findings = [_absent(name)]
        else:
            findings = self._platform_findings(name, image)
            if not findings:
                contents = self._look_into(name, image)
                findings = judge(name, contents, self.wishes)
        entry = self._entry(name, image or {}, contents)
        entry["suitable"] = worst_severity(findings) != ERROR
        entry["findings"] = as_dicts(findings)
        entry["duration_ms"] = round((monotonic() - began) * 1000)
        return entry, findings

    def _look_into(self, name: str, image: dict[str, Any]) -> Contents:
        try:
            with open_image(self.client, image) as files:
                return ImageProbe(files, image.get("Config") or {}, self.request).run()
        except Exception as error:
            if not host_python.is_engine_error(error):
                raise
            raise host_python.EngineUnavailable(
                f"The Docker Engine cannot read files of image {name}: {error}"
            ) from error

    def _platform_findings(self, name: str, image: dict[str, Any]) -> list[Finding]:
        found = _image_platform(image)
        if found == self.platform:
            return []
        return [
            Finding(
                "IMAGE.PLATFORM",
                ERROR,
                name,
                f"The image is for {found}, {self.platform} is needed: its programs end with 'exec format error' there.",
                f"Pull it with --platform {self.platform}, or use an image that is built for it.",
            )
        ]

    def _entry(self, name: str, image: dict[str, Any], contents: Contents) -> dict[str, Any]:
        verdicts, closest = judge_architectures(contents, self.wishes) if contents.engine else ({}, {})
        registry = contents.registry
        asked = bool(self.wishes.architectures)
        return {
            "image": name,
            "id": image.get("Id", ""),
            "digests": image.get("RepoDigests") or [],
            "present": bool(image),
            "platform": str(_image_platform(image)) if image else "",
            "engine": contents.engine,
            "engine_version": contents.engine_version,
            "engine_path": contents.engine_path,
            "editable": contents.editable,
            "versions": contents.versions,
            "architectures": verdicts,
            "closest": closest,
            "known_architectures": registry.kinds if registry and not asked else {},
            "plugins": contents.plugins,
            "nccl_conf": contents.nccl_conf,
            "reasoning_parsers": contents.reasoning_parsers,
            "tool_call_parsers": contents.tool_call_parsers,
        }


def _image_platform(image: dict[str, Any]) -> Platform:
    return Platform.of(image["Os"], image["Architecture"], image.get("Variant") or "")


def _absent(name: str) -> Finding:
    return Finding(
        "IMAGE.ABSENT",
        ERROR,
        name,
        "The Docker Engine of this host does not have the image.",
        f"Pull it (docker pull {name}), or load it from a host that has it.",
    )


def summary(entries: list[dict[str, Any]]) -> str:
    """A few lines per image that fit a terminal of 80 columns and 24 lines as long as there are few images."""
    lines = []
    for entry in entries:
        lines.append(f"{entry['image']}: {'suitable' if entry['suitable'] else 'not suitable'}")
        if entry["engine"]:
            versions = [f"{name} {entry['versions'].get(name) or '-'}" for name in _SUMMARY_VERSIONS]
            lines.append(f"  {entry['engine']} {entry['engine_version'] or '?'}; {', '.join(versions)}")
        lines += [f"  {name}: supported" for name, found in entry["architectures"].items() if found["supported"]]
        for finding in entry["findings"]:
            lines.append(f"  {finding['severity']}: {finding['message']}")
            if finding["remedy"]:
                lines.append(f"    -> {finding['remedy']}")
    return "\n".join(lines)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "list", "elements": "str", "required": True},
            "architecture": {"type": "list", "elements": "str", "default": []},
            "model_path": {"type": "path"},
            "engine": {"type": "str", "choices": ["auto", "vllm", "sglang"], "default": "auto"},
            "source": {"type": "str", "choices": ["engine"], "default": "engine"},
            "method": {"type": "str", "choices": ["static"], "default": "static"},
            "platform": {"type": "str"},
            "require": {"type": "dict", "default": {}},
            "prefer": {"type": "dict", "default": {}},
            "reasoning_parser": {"type": "str"},
            "tool_call_parser": {"type": "str"},
            "gpu_arch": {"type": "str"},
            **host_python.docker_argument_spec(),
            **findings_argument_spec(),
        },
        supports_check_mode=True,
    )
    host_python.require_docker_sdk(module)
    try:
        wishes = wishes_of(module.params)
        client = host_python.connect_engine(module.params["docker_host"])
        remove_stale_probes(client, time())
        probe = RegistryProbe(client, module.params, wishes)
        results = [probe.probe(name) for name in module.params["image"]]
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
