# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether what an image contains meets what is asked of it.

PRIVATE to this collection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils import _model_registry as registries
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._image_probe import Contents
from ansible_collections.dgxspark.serving.plugins.module_utils._pep440 import Requirement, Version

_ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
# The CUDA toolkit that first knows a GPU architecture (release notes of CUDA 11.8, 12.8, 12.9 and 13.0).
_CUDA_OF_ARCHITECTURE = {
    (8, 9): "11.8",
    (9, 0): "11.8",
    (10, 0): "12.8",
    (12, 0): "12.8",
    (10, 3): "12.9",
    (12, 1): "12.9",
    (11, 0): "13.0",
}
# vLLM images without Ray can still serve over several hosts with the multiprocessing executor, from this version
# (--nnodes, --node-rank and --headless).
_VLLM_WITH_MP_OVER_HOSTS = Version.parse("0.12")


@dataclass(frozen=True)
class Wishes:
    """What an image must have (require) and had better have (prefer): true, false or a version requirement by name."""

    architectures: tuple[str, ...] = ()
    model_type: str = ""
    # The model brings code of its own for its configuration.
    remote_code: bool = False
    require: Mapping[str, Any] = field(default_factory=dict)
    prefer: Mapping[str, Any] = field(default_factory=dict)
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    gpu_arch: tuple[int, int] | None = None


def judge_architectures(contents: Contents, wishes: Wishes) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """(verdict by architecture, closest known name by architecture that is not known)."""
    verdicts: dict[str, dict[str, Any]] = {}
    closest = {}
    for name in wishes.architectures:
        registry = contents.registry
        kind = registry.kind(name) if registry else ""
        supported: bool | None = kind == registries.MODEL
        if not supported and (registry is None or not registry.complete or contents.plugins):
            # A plugin or something that cannot be read may still add it.
            supported = None
        kind = kind or (registries.PLUGIN if contents.plugins else "")
        if _has_answered(contents):
            # The engine lists drafts as well, without saying that they are.
            known = name in (contents.imported.architectures if contents.imported else ())
            supported = known and kind != registries.DRAFT
            kind = kind or (registries.MODEL if known else "")
        verdict: dict[str, Any] = {"supported": supported, "kind": kind or None}
        if registry and kind == registries.REMOVED:
            verdict["last_version"] = registry.notes.get(name, "")
        if registry and kind == registries.PLUGIN:
            verdict["plugin"] = registry.notes.get(name, "")
        verdicts[name] = verdict
        if registry and not supported and kind != registries.MODEL:
            closest[name] = registry.closest(name)
    return verdicts, closest


def _has_answered(contents: Contents) -> bool:
    return contents.imported is not None and not contents.imported.problem


def judge(image: str, contents: Contents, wishes: Wishes) -> list[Finding]:
    """Everything that speaks against the image. No error: it is suitable."""
    if not contents.engine:
        return [
            Finding(
                "IMAGE.NO_ENGINE",
                ERROR,
                image,
                "The image has neither vLLM nor SGLang where its Python would import them from.",
                "Use an image with an inference engine.",
            )
        ]
    findings = []
    findings += _judge_import(image, contents)
    verdicts, closest = judge_architectures(contents, wishes)
    for name, verdict in verdicts.items():
        finding = _judge_architecture(image, contents, name, verdict, closest.get(name, ""))
        if finding:
            findings.append(finding)
    findings += _judge_model_type(image, contents, wishes)
    findings += _judge_parser(image, contents, "reasoning", wishes.reasoning_parser, contents.reasoning_parsers)
    findings += _judge_parser(image, contents, "tool call", wishes.tool_call_parser, contents.tool_call_parsers)
    findings += _judge_gpu(image, contents, wishes)
    findings += _judge_nccl_conf(image, contents)
    for severity, wanted in ((ERROR, wishes.require), (WARNING, wishes.prefer)):
        for name, wish in wanted.items():
            finding = judge_package(image, contents, name, wish, severity)
            if finding:
                findings.append(finding)
    return findings


def _engine(contents: Contents) -> str:
    return f"{_ENGINE_NAMES[contents.engine]} {contents.engine_version or '(version unknown)'}"


def _judge_architecture(
    image: str, contents: Contents, name: str, verdict: dict[str, Any], closest: str
) -> Finding | None:
    """Why the engine cannot serve the architecture, or why that cannot be told."""
    if verdict["supported"]:
        return None
    hint = f"; the closest it knows is {closest}" if closest else ""
    if verdict["supported"] is None and (
        contents.registry is None or contents.plugins or not (verdict["kind"] or contents.registry.complete)
    ):
        return _undecided(image, contents, name, hint)
    engine, kind, product = _engine(contents), verdict["kind"], _ENGINE_NAMES[contents.engine]
    if kind == registries.REMOVED:
        return Finding(
            "REGISTRY.ARCHITECTURE_REMOVED",
            ERROR,
            image,
            f"{engine} no longer knows {name}; the last version that did was {verdict['last_version']}.",
            f"Use an image with {product} {verdict['last_version']} or older.",
        )
    if kind == registries.DRAFT:
        return Finding(
            "REGISTRY.DRAFT_ONLY",
            ERROR,
            image,
            f"{engine} knows {name} as a draft for speculative decoding only, not as a model to serve.",
            "Name the architecture of the model itself (architectures in its config.json).",
        )
    if kind == registries.PLUGIN and not contents.plugins:
        return Finding(
            "REGISTRY.PLUGIN_MISSING",
            ERROR,
            image,
            f"{engine} knows {name} only with a plugin, which the image does not have: {verdict['plugin']}.",
            "Use an image with the plugin.",
        )
    return Finding(
        "REGISTRY.ARCHITECTURE_UNKNOWN",
        ERROR,
        image,
        f"{engine} does not know {name}{hint}.",
        f"Use an image with a newer {product}. A newer transformers does not help.",
    )


def _undecided(image: str, contents: Contents, name: str, hint: str) -> Finding:
    engine = _engine(contents)
    if contents.registry is None:
        return Finding(
            "REGISTRY.UNREADABLE",
            ERROR,
            image,
            f"The model registry of {engine} cannot be read: {contents.unreadable}.",
            "Use an image with a released version of the engine.",
            contents.engine_path,
        )
    if not contents.plugins:
        return Finding(
            "REGISTRY.INCOMPLETE",
            ERROR,
            image,
            f"{name} is not in what can be read of the model registry of {engine}{hint}, but a part of it is computed.",
            "Ask the engine itself (method: import), or use an image with a released version.",
        )
    plugins = ", ".join(f"{plugin} = {target}" for plugin, target in contents.plugins.items())
    allowed = contents.plugin_filter
    filtered = "" if allowed is None else f" The image sets VLLM_PLUGINS to {allowed!r}: only what it names is loaded."
    return Finding(
        "REGISTRY.PLUGIN_UNDECIDED",
        ERROR,
        image,
        f"{engine} itself does not know {name}{hint}, but the image has plugins that may add it: {plugins}.{filtered}",
        "The files cannot tell what a plugin adds: ask the engine itself (method: import).",
        plugins,
    )


def _judge_import(image: str, contents: Contents) -> list[Finding]:
    """What the engine itself says against what its files say."""
    said = contents.imported
    if said is None:
        return []
    engine = _engine(contents)
    if said.problem:
        return [
            Finding(
                "REGISTRY.IMPORT_FAILED",
                ERROR,
                image,
                f"{engine} could not be asked in the image: {said.problem}. What follows is what its files say.",
                "Start the image by hand to see why.",
                said.evidence,
            )
        ]
    findings = []
    if said.failures:
        findings.append(
            Finding(
                "REGISTRY.IMPORT_INCOMPLETE",
                WARNING,
                image,
                f"{engine} could not import everything: {said.failures[0]}"
                + (f" and {len(said.failures) - 1} more." if len(said.failures) > 1 else "."),
                evidence="\n".join(said.failures),
            )
        )
    return findings + _disagreement(image, contents, set(said.architectures))


def _disagreement(image: str, contents: Contents, said: set[str]) -> list[Finding]:
    registry = contents.registry
    if registry is None or not registry.complete:
        return []
    read = {name for name, kind in registry.kinds.items() if kind in (registries.MODEL, registries.DRAFT)}
    # What plugins add is no contradiction.
    more, less = (set() if contents.plugins else said - read), read - said
    if not more and not less:
        return []
    parts = [
        f"{len(names)} that {what} ({', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''})"
        for names, what in ((more, "its files do not show"), (less, "only its files show"))
        if names
    ]
    return [
        Finding(
            "REGISTRY.DISAGREEMENT",
            WARNING,
            image,
            f"{_engine(contents)} and its files disagree on architectures: {' and '.join(parts)}. What the engine says counts.",
            "Something in the image changes the registry when it starts; please report it.",
        )
    ]


def _judge_model_type(image: str, contents: Contents, wishes: Wishes) -> list[Finding]:
    known = contents.model_types
    if not wishes.model_type or wishes.remote_code or known is None or wishes.model_type in known:
        return []
    transformers = contents.versions.get("transformers") or "(version unknown)"
    return [
        Finding(
            "REGISTRY.MODEL_TYPE_UNKNOWN",
            ERROR,
            image,
            f"Neither {_engine(contents)} nor transformers {transformers} has a configuration class for model type "
            f"{wishes.model_type}.",
            "Use a newer image rather than a newer transformers in this one.",
        )
    ]


def _judge_parser(image: str, contents: Contents, what: str, wanted: str, known: list[str]) -> list[Finding]:
    if not wanted or wanted in known:
        return []
    name = what.upper().replace(" ", "_")
    if not known:
        return [
            Finding(
                f"REGISTRY.{name}_PARSER_UNDECIDED",
                WARNING,
                image,
                f"The names of the {what} parsers of {_engine(contents)} cannot be read, so {wanted} is not checked.",
            )
        ]
    return [
        Finding(
            f"REGISTRY.{name}_PARSER_UNKNOWN",
            ERROR,
            image,
            f"{_engine(contents)} has no {what} parser {wanted}.",
            f"Use one of: {', '.join(known)}.",
        )
    ]


def _judge_gpu(image: str, contents: Contents, wishes: Wishes) -> list[Finding]:
    """Whether torch has kernels for the GPU, or, where that cannot be read, whether its toolkit knows the GPU."""
    torch = contents.versions.get("torch")
    if not wishes.gpu_arch or not torch:
        return []
    wanted = ".".join(map(str, wishes.gpu_arch))
    archs = built_for(contents)
    remedy = "Expect 'no kernel image is available for execution on the device'; use an image built with CUDA 13."
    if archs:
        # What the libraries have is known better than what the image says of itself.
        read = {name: known for name, known in archs.items() if name != "environment"} or archs
        lacking = {name: known for name, known in read.items() if not runs_on(known, wishes.gpu_arch)}
        return [
            Finding(
                "IMAGE.GPU_ARCH",
                WARNING,
                image,
                f"{'The image' if name == 'environment' else name} is built for {', '.join(known)}; "
                f"none of them runs on compute capability {wanted}.",
                remedy,
            )
            for name, known in lacking.items()
        ]
    needed, cuda = _CUDA_OF_ARCHITECTURE.get(wishes.gpu_arch), contents.versions.get("cuda")
    if not needed or (cuda and Version.parse(cuda) >= Version.parse(needed)):
        return []
    built = f"is built with CUDA {cuda}" if cuda else "is built without CUDA"
    message = f"torch {torch} {built}; compute capability {wanted} is known from CUDA {needed} on."
    return [Finding("IMAGE.GPU_ARCH", WARNING, image, message, remedy)]


def built_for(contents: Contents) -> dict[str, list[str]]:
    """GPU architectures by what has code for them, torch's own answer before what its file says."""
    said = contents.imported.gpu_archs if contents.imported else []
    return {**contents.gpu_archs, **({"torch": said} if said else {})}


def runs_on(archs: list[str], gpu: tuple[int, int]) -> bool:
    """Whether code for one of the architectures (12.0+PTX, 12.1a, sm_120, compute_90) runs on the GPU.

    Binaries run on the same and on newer GPUs of their generation, PTX on all newer ones; what is specific to an
    architecture (a) on no other, to a family (f) on no other generation (CUDA programming guide, compute capabilities).
    """
    for arch in archs:
        found = re.fullmatch(r"(?:(sm|compute)_)?(\d+)\.?(\d)([af]?)(\+PTX)?", arch)
        if not found:
            continue
        have = int(found[2]), int(found[3])
        if have == gpu:
            return True
        ptx = found[1] == "compute" or found[5]
        if not found[4] and ptx and have < gpu:
            return True
        if found[4] != "a" and found[1] != "compute" and have[0] == gpu[0] and have < gpu:
            return True
    return False


def _judge_nccl_conf(image: str, contents: Contents) -> list[Finding]:
    if not contents.nccl_conf:
        return []
    settings = ", ".join(f"{name}={value}" for name, value in contents.nccl_conf.items())
    return [
        Finding(
            "IMAGE.NCCL_CONF",
            WARNING,
            image,
            f"The image brings settings of NCCL in a file (/etc/nccl.conf or ~/.nccl.conf), which no look at its environment "
            f"shows: {settings}.",
            "Set what is not wanted in the environment, which wins over the file, or mount an empty file over it.",
            settings,
        )
    ]


def judge_package(image: str, contents: Contents, name: str, wish: Any, severity: str) -> Finding | None:
    """What is wrong with the version of one package; wish: true, false or a requirement such as C(>=0.17)."""
    identity = f"REQUIRE.{re.sub(r'[^A-Z0-9]+', '_', name.upper())}"
    version = contents.versions.get(name)
    if wish is False:
        if version is None:
            return None
        return Finding(identity, severity, image, f"{name} {version} is in the image and must not be.")
    wanted = "" if wish is True else f" {wish}"
    if version is None:
        message = f"{name}{wanted} is needed, the image has no {name}."
        if name == contents.engine:
            message, severity = f"{name}{wanted} is needed, the version of {name} in the image is unknown.", WARNING
        return Finding(identity, severity, image, message, _remedy_for_missing(contents, name))
    if wish is True:
        return None
    try:
        found = Version.parse(version)
    except ValueError:
        return Finding(
            identity,
            WARNING,
            image,
            f"{name}{wanted} is needed, {version!r} in the image cannot be compared with that.",
        )
    if found.without_release:
        return Finding(
            identity,
            WARNING,
            image,
            f"{name}{wanted} is needed, the image has the development build {version}, which does not say to which "
            "release it belongs.",
        )
    if Requirement.parse(str(wish)).met_by(found):
        return None
    return Finding(identity, severity, image, f"{name}{wanted} is needed, the image has {name} {version}.")


def _remedy_for_missing(contents: Contents, name: str) -> str:
    if name != "ray":
        return ""
    remedy = "Use an image that has Ray, or add the same version of it on all hosts"
    try:
        newer = contents.engine == "vllm" and Version.parse(contents.engine_version) >= _VLLM_WITH_MP_OVER_HOSTS
    except ValueError:
        newer = False
    return f"{remedy}, or serve without Ray (spark_backend: mp)." if newer else f"{remedy}."
