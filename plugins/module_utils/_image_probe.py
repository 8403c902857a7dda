# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an image can serve, found out from its files.

PRIVATE to this collection. Gathers; the judgement is in _image_verdict.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ansible_collections.dgxspark.serving.plugins.module_utils import _model_registry as registries
from ansible_collections.dgxspark.serving.plugins.module_utils._fatbin import gpu_archs
from ansible_collections.dgxspark.serving.plugins.module_utils._image_files import Files
from ansible_collections.dgxspark.serving.plugins.module_utils._image_python import (
    ImagePython,
    Package,
    PythonFinder,
    parse_entry_points,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._import_probe import Imported
from ansible_collections.dgxspark.serving.plugins.module_utils._static_python import StaticModule, Unreadable

ENGINES = ("vllm", "sglang")
# Entry points that every vLLM process loads and that may add architectures (vllm/plugins/__init__.py).
_PLUGIN_GROUPS = ("vllm.general_plugins",)
# Where a package says its version: file below its folder, names in the order of preference.
_VERSION_FILES = {
    "vllm": (("_version.py", "version.py"), ("__version__", "version")),
    "sglang": (("_version.py", "version.py"), ("__version__", "version")),
    "torch": (("version.py",), ("__version__",)),
    "transformers": (("__init__.py",), ("__version__",)),
    "ray": (("_version.py",), ("version", "__version__")),
    "flashinfer": (("_build_meta.py", "_version.py"), ("__version__",)),
    "triton": (("__init__.py",), ("__version__",)),
}
# Libraries of vLLM with kernels for GPUs; the first name is that of most versions.
_KERNELS = ("_C.abi3.so", "_C_stable_libtorch.abi3.so", "_moe_C.abi3.so")
# Where NCCL's header lies: below a package folder (the wheel nvidia-nccl-cu*, which torch prefers), or in the system.
_NCCL_HEADER_IN_FOLDER = "nvidia/nccl/include/nccl.h"
_NCCL_HEADERS = ("/usr/include/nccl.h", "/usr/local/include/nccl.h", "/usr/local/cuda/include/nccl.h")
_NCCL_LIBRARIES = (
    "/usr/lib/aarch64-linux-gnu/libnccl.so.2",
    "/usr/lib/x86_64-linux-gnu/libnccl.so.2",
    "/usr/local/lib/libnccl.so.2",
)


@dataclass(frozen=True)
class Request:
    """What is asked about an image."""

    engine: str = "auto"
    # Architectures: plugins are searched for when one of them is not in the registry.
    architectures: tuple[str, ...] = ()
    # Names of require and prefer.
    packages: tuple[str, ...] = ()
    # Whether it matters which model types are known: their tables are long.
    model_types: bool = False
    # Whether it matters for which GPUs the libraries have code.
    gpu_archs: bool = False


@dataclass
class Contents:
    """What an image contains. Empty strings and None: not found; registry None: it could not be read, see unreadable."""

    engine: str = ""
    engine_version: str = ""
    engine_path: str = ""
    editable: bool = False
    # The Python that runs the engine.
    interpreter: str = ""
    versions: dict[str, str | None] = field(default_factory=dict)
    registry: registries.Registry | None = None
    unreadable: str = ""
    plugins: dict[str, str] = field(default_factory=dict)
    plugin_filter: str | None = None
    reasoning_parsers: list[str] = field(default_factory=list)
    tool_call_parsers: list[str] = field(default_factory=list)
    # Settings of NCCL that the image brings in a file, where no inspection of its environment shows them.
    nccl_conf: dict[str, str] = field(default_factory=dict)
    # GPU architectures by what has code for them: the engine, torch. environment: for which the image says to be built.
    gpu_archs: dict[str, list[str]] = field(default_factory=dict)
    # What the engine itself says, if it was asked (method: import).
    imported: Imported | None = None
    # Whether all layers were read. If not, what is missing here may still be in the image.
    complete: bool = True
    # Model types that engine or transformers know; None when that cannot be told or was not asked.
    model_types: set[str] | None = None


class ImageProbe:
    def __init__(self, files: Files, config: dict[str, object], request: Request) -> None:
        self.files = files
        self.request = request
        self.environment = dict(item.split("=", 1) for item in _strings(config.get("Env")) if "=" in item)
        self.finder = PythonFinder(files, self.environment, _strings(config.get("Entrypoint")))

    def run(self) -> Contents:
        found = self._find_engine()
        if not found:
            return Contents(complete=self.files.complete)
        python, package = found
        contents = Contents(engine=package.name, engine_path=package.path, editable=package.editable)
        contents.interpreter, contents.complete = python.interpreter, self.files.complete
        contents.versions = self._versions(python, package)
        contents.engine_version = contents.versions.get(package.name) or ""
        if package.name == "vllm":
            self._read_vllm(contents, package.path)
        else:
            self._read_sglang(contents, package.path)
        contents.nccl_conf = self._nccl_conf()
        contents.gpu_archs = self._gpu_archs(python, package)
        if self.request.model_types:
            contents.model_types = self._model_types(python, package)
        self._search_distributions(contents, python)
        return contents

    def _find_engine(self) -> tuple[ImagePython, Package] | None:
        """The engine and the Python that runs it. Editable installs are looked for only if nothing else is found."""
        engines = ENGINES if self.request.engine == "auto" else (self.request.engine,)
        for editable in (False, True):
            for engine in engines:
                for python in self.finder.pythons(engine):
                    package = self.finder.find_package(python, engine, editable)
                    if package:
                        return python, package
        return None

    def _versions(self, python: ImagePython, engine: Package) -> dict[str, str | None]:
        versions: dict[str, str | None] = {"python": python.version}
        torch: StaticModule | None = None
        for name, (files, keys) in _VERSION_FILES.items():
            package = engine if name == engine.name else self.finder.find_package(python, name)
            module = self._first_module([f"{package.path}/{file}" for file in files]) if package else None
            versions[name] = (module.text(*keys) or None) if module else None
            if name == "torch":
                torch = module
        versions["cuda"] = (torch.text("cuda") or None) if torch else None
        versions["nccl"] = self._nccl_version(python)
        return versions

    def _first_module(self, paths: list[str]) -> StaticModule | None:
        for path in paths:
            content = self.files.read(path)
            if content is None:
                continue
            try:
                return StaticModule(content)
            except Unreadable:
                continue
        return None

    def _nccl_version(self, python: ImagePython) -> str | None:
        """The version of the NCCL that torch loads. The variable NCCL_VERSION of images is not asked: it is often stale."""
        headers = [f"{folder}/{_NCCL_HEADER_IN_FOLDER}" for folder in python.folders]
        for path in (*headers, *_NCCL_HEADERS):
            content = self.files.read(path)
            found = content and re.findall(rb"#define\s+NCCL_(?:MAJOR|MINOR|PATCH)\s+(\d+)", content)
            if found and len(found) == 3:
                return ".".join(number.decode() for number in found)
        for path in _NCCL_LIBRARIES:
            info = self.files.info(path)
            named = info and re.search(r"\.so\.(\d+\.\d+\.\d+)$", info.target)
            if named:
                return named[1]
        return self.finder.debian_version("libnccl2") or None

    def _nccl_conf(self) -> dict[str, str]:
        """What NCCL reads beside the environment, the user's file last, which wins."""
        settings = {}
        for path in ("/etc/nccl.conf", f"{self.environment.get('HOME', '/root')}/.nccl.conf"):
            for line in (self.files.read(path) or b"").decode(errors="replace").splitlines():
                name, equals, value = line.partition("=")
                if equals and not name.lstrip().startswith("#"):
                    settings[name.strip()] = value.strip()
        return settings

    def _gpu_archs(self, python: ImagePython, engine: Package) -> dict[str, list[str]]:
        """Read from the libraries where this host has them as files; they have hundreds of megabytes."""
        found: dict[str, list[str]] = {}
        if self.request.gpu_archs:
            for file in _KERNELS:
                found[engine.name] = found.get(engine.name) or self.files.look(f"{engine.path}/{file}", gpu_archs)
            torch = self.finder.find_package(python, "torch")
            if torch:
                found["torch"] = self.files.look(f"{torch.path}/lib/libtorch_cuda.so", gpu_archs)
        found["environment"] = self.environment.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
        return {name: archs for name, archs in found.items() if archs}

    def _read_vllm(self, contents: Contents, path: str) -> None:
        source = self.files.read(f"{path}/model_executor/models/registry.py")
        try:
            if source is None:
                raise Unreadable("model_executor/models/registry.py is missing")
            contents.registry = registries.read_vllm_registry(source)
        except Unreadable as error:
            contents.unreadable = str(error)
        contents.plugin_filter = self.environment.get("VLLM_PLUGINS")
        contents.reasoning_parsers = self._vllm_parsers(("reasoning",), path, "ReasoningParserManager")
        folders = ("tool_parsers", "entrypoints/openai/tool_parsers")
        contents.tool_call_parsers = self._vllm_parsers(folders, path, "ToolParserManager")

    def _vllm_parsers(self, folders: tuple[str, ...], path: str, manager: str) -> list[str]:
        """The folder has moved between versions; the old place may hold forwarding modules without names."""
        for folder in folders:
            # Newer versions have one table; older ones register in each module, so all must be read.
            table = self.files.read(f"{path}/{folder}/__init__.py")
            if table is None:
                continue
            names = registries.read_parser_names([table], manager)
            if not names:
                modules = self.files.read_folder(f"{path}/{folder}", "*.py")
                names = registries.read_parser_names(modules.values(), manager)
            if names:
                return sorted(names)
        return []

    def _read_sglang(self, contents: Contents, path: str) -> None:
        modules = self.files.read_folder(f"{path}/srt/models", "*.py")
        if modules:
            contents.registry = registries.read_sglang_registry(modules)
        else:
            contents.unreadable = "srt/models is missing"
        reasoning = ("srt/parser/reasoning_parser.py", "srt/reasoning_parser.py")
        tools = ("srt/function_call/function_call_parser.py",)
        contents.reasoning_parsers = self._sglang_parsers(reasoning, path)
        contents.tool_call_parsers = self._sglang_parsers(tools, path)

    def _sglang_parsers(self, files: tuple[str, ...], path: str) -> list[str]:
        for file in files:
            source = self.files.read(f"{path}/{file}")
            if source is not None:
                return sorted(registries.read_sglang_parser_names(source))
        return []

    def _model_types(self, python: ImagePython, engine: Package) -> set[str] | None:
        """Model types for which a configuration class exists: in transformers, or in the engine, whose own table goes first."""
        own: set[str] = set()
        if engine.name == "vllm":
            source = self.files.read(f"{engine.path}/transformers_utils/config.py")
            own, _complete = registries.read_config_types(source, "_CONFIG_REGISTRY")
        else:
            # SGLang registers the classes of these modules in a loop.
            modules = self.files.read_folder(f"{engine.path}/srt/configs", "*.py")
            own = registries.read_class_model_types(modules.values())
        transformers = self.finder.find_package(python, "transformers")
        if not transformers:
            return None
        # From 5 on the table is generated into a file of its own, and the old one adds a few names to it.
        auto = f"{transformers.path}/models/auto"
        sources = [self.files.read(f"{auto}/{name}") for name in ("configuration_auto.py", "auto_mappings.py")]
        tables = [registries.read_config_types(source, "CONFIG_MAPPING_NAMES") for source in sources]
        if not any(complete for _types, complete in tables):
            return None
        return own.union(*(types for types, _complete in tables))

    def _search_distributions(self, contents: Contents, python: ImagePython) -> None:
        """Plugins and packages that only a search of all installed distributions finds; not done unless it can matter."""
        registry = contents.registry
        undecided = (
            contents.engine == "vllm"
            and registry is not None
            and any(registry.kind(name) != registries.MODEL for name in self.request.architectures)
        )
        unknown = [name for name in self.request.packages if name not in contents.versions]
        if not undecided and not unknown:
            return
        versions, entry_points = self.finder.distributions(python)
        for name in unknown:
            contents.versions[name] = versions.get(re.sub(r"[-_.]+", "-", name).lower())
        for distribution, text in sorted(entry_points.items()):
            for name, target in parse_entry_points(text, _PLUGIN_GROUPS).items():
                # vLLM has plugins of its own, which add no architecture.
                if re.split(r"[.:]", target)[0] != contents.engine:
                    contents.plugins[name] = f"{target} ({distribution} {versions[distribution]})"


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
