# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Images in memory for the tests of registry_probe."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_engine import FakeImage, Link

DIST = "/usr/local/lib/python3.12/dist-packages"


QWEN = "Qwen3_5MoeForConditionalGeneration"


UBUNTU_PYTHON: dict[str, bytes | str] = {
    "/usr/bin/python3": Link("python3.12"),
    "/usr/bin/python3.12": b"\x7fELF",
    "/usr/include/python3.12/patchlevel.h": '#define PY_VERSION              "3.12.3"\n',
}


def vllm_files(registry: str, version: str = "0.17.1", folder: str = f"{DIST}/vllm") -> dict[str, bytes | str]:
    return {
        f"{folder}/__init__.py": "",
        f"{folder}/_version.py": f"__version__ = version = {version!r}\n__version_tuple__ = version_tuple = (0, 0)\n",
        f"{folder}/model_executor/models/registry.py": registry,
    }


def vllm_image(
    registry: str, version: str = "0.17.1", more: dict[str, bytes | str] | None = None, **inspect: Any
) -> FakeImage:
    script: dict[str, bytes | str] = {"/usr/local/bin/vllm": "#!/usr/bin/python3\nimport sys\n"}
    return FakeImage({**UBUNTU_PYTHON, **script, **vllm_files(registry, version), **(more or {})}, **inspect)


def ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


REGISTRY = f'_VLLM_MODELS = {{"{QWEN}": ("qwen3_5", "{QWEN}")}}\n'


OLD_REGISTRY = '_VLLM_MODELS = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}\n'
