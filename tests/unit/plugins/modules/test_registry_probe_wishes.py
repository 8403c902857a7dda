# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parsers, versions and GPUs that an image must or should have."""

from __future__ import annotations

import pytest
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_engine import Link
from ansible_collections.dgxspark.serving.tests.unit.plugins.probe_images import (
    DIST,
    QWEN,
    REGISTRY,
    ids,
    vllm_image,
)


@pytest.mark.parametrize(
    "files, parsers",
    [
        (
            {"reasoning/__init__.py": '_REASONING_PARSERS_TO_REGISTER = {"qwen3": ("qwen3_reasoning_parser", "Q")}\n'},
            ["qwen3"],
        ),
        (
            {
                "reasoning/__init__.py": "from .a import A\n",
                "reasoning/a.py": '@ReasoningParserManager.register_module("deepseek_r1")\nclass A: ...\n',
                "reasoning/b.py": '@ReasoningParserManager.register_module(name="qwen3")\nclass B: ...\n',
                "reasoning/c.py": '@ReasoningParserManager.register_module(["x", "y"])\nclass C: ...\n',
                "reasoning/d.py": '@ToolParserManager.register_module("tool")\nclass D: ...\n',
            },
            ["deepseek_r1", "qwen3", "x", "y"],
        ),
    ],
)
def test_parsers_of_old_and_new_vllm(probe, files, parsers):
    more = {f"{DIST}/vllm/{name}": text for name, text in files.items()}
    result = probe(vllm_image(REGISTRY, more=more), architecture=QWEN, reasoning_parser="qwen3")
    assert result["images"][0]["reasoning_parsers"] == parsers
    assert ids(result) == []
    missing = probe(vllm_image(REGISTRY, more=more), architecture=QWEN, reasoning_parser="nope")
    assert ids(missing) == ["REGISTRY.REASONING_PARSER_UNKNOWN"]
    assert "qwen3" in missing["findings"][0]["remedy"]


@pytest.mark.parametrize("folder", ["tool_parsers", "entrypoints/openai/tool_parsers"])
def test_tool_call_parsers_have_moved(probe, folder):
    init = {f"{DIST}/vllm/{folder}/__init__.py": ""}
    more = {**init, f"{DIST}/vllm/{folder}/q.py": '@ToolParserManager.register_module(["qwen3_coder"])\nclass Q: ...\n'}
    result = probe(vllm_image(REGISTRY, more=more), architecture=QWEN, tool_call_parser="qwen3_coder")
    assert result["images"][0]["tool_call_parsers"] == ["qwen3_coder"]
    assert ids(result) == []


def test_parser_that_cannot_be_checked_is_a_warning(probe):
    result = probe(vllm_image(REGISTRY), architecture=QWEN, tool_call_parser="qwen3_coder")
    assert [(finding["id"], finding["severity"]) for finding in result["findings"]] == [
        ("REGISTRY.TOOL_CALL_PARSER_UNDECIDED", "warning")
    ]


@pytest.mark.parametrize(
    "files, env, version",
    [
        (
            {
                f"{DIST}/nvidia/nccl/include/nccl.h": "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n",
                "/usr/include/nccl.h": "#define NCCL_MAJOR 2\n#define NCCL_MINOR 30\n#define NCCL_PATCH 4\n",
            },
            "2.21.5",
            "2.28.9",
        ),
        ({"/usr/lib/aarch64-linux-gnu/libnccl.so.2": Link("libnccl.so.2.30.7")}, "2.21.5", "2.30.7"),
        (
            {"/var/lib/dpkg/status": "Package: libnccl2\nStatus: install ok installed\nVersion: 2.29.3-1+cuda13.0\n\n"},
            "2.21.5",
            "2.29.3",
        ),
        ({}, "2.21.5", None),
    ],
    ids=["wheel goes first", "name of the library", "package", "never the variable"],
)
def test_nccl_version_is_that_of_the_library(probe, files, env, version):
    image = vllm_image(REGISTRY, more=files, env=["PATH=/usr/local/bin:/usr/bin", f"NCCL_VERSION={env}"])
    assert probe(image)["images"][0]["versions"]["nccl"] == version


@pytest.mark.parametrize(
    "installed, wish, severity",
    [
        ("0.17.1rc1", ">=0.17", None),
        ("0.17.0+nv26.03", ">=0.17,<0.20", None),
        ("0.16.0", ">=0.17", "error"),
        ("0.17.1", "0.17.1", None),
        ("0.17.1", False, "error"),
        ("0.17.1", True, None),
    ],
)
def test_requirements(probe, installed, wish, severity):
    result = probe(vllm_image(REGISTRY, installed), require={"vllm": wish})
    assert [finding["severity"] for finding in result["findings"]] == ([severity] if severity else [])
    preferred = probe(vllm_image(REGISTRY, installed), prefer={"vllm": wish})
    assert [finding["severity"] for finding in preferred["findings"]] == (["warning"] if severity else [])
    assert preferred["suitable"] == ["img"]


def test_any_distribution_can_be_required(probe):
    more = {
        f"{DIST}/flash_attn_3-3.0.1.dist-info/INSTALLER": "pip\n",
        f"{DIST}/flash_attn_3-3.0.1.dist-info/METADATA": "",
    }
    image = vllm_image(REGISTRY, more=more)
    result = probe(image, require={"Flash-Attn.3": ">=3", "deep_gemm": True})
    assert result["images"][0]["versions"]["Flash-Attn.3"] == "3.0.1"
    assert ids(result) == ["REQUIRE.DEEP_GEMM"]


@pytest.mark.parametrize(
    "gpu_arch, cuda, expected",
    [
        ("12.1", "'12.8'", ["IMAGE.GPU_ARCH"]),
        ("12.1", "'13.0'", []),
        ("12.1", "None", ["IMAGE.GPU_ARCH"]),
        ("9.0", "'12.8'", []),
    ],
)
def test_gpu_architecture(probe, gpu_arch, cuda, expected):
    more = {
        f"{DIST}/torch/__init__.py": "",
        f"{DIST}/torch/version.py": f"__version__ = '2.9.0'\ncuda: Optional[str] = {cuda}\n",
    }
    assert ids(probe(vllm_image(REGISTRY, more=more), gpu_arch=gpu_arch)) == expected
