# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""method: import on real engines and on images that misbehave when they are started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import real

PLUGIN = """
def register():
    from vllm import ModelRegistry
    ModelRegistry.register_model("RavenForCausalLM", "raven_vllm:Raven")
"""


@pytest.fixture
def image(request: pytest.FixtureRequest, complete_image: str, tmp_path: Path) -> Any:
    """Makes an image of the complete one and of files that are added."""

    def make(files: dict[str, str], then: str = "") -> str:
        for path, text in files.items():
            place = tmp_path / "added" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        site = real.probe(image=complete_image)["images"][0]["engine_path"].rpartition("/")[0]
        (tmp_path / "Dockerfile").write_text(f"FROM {complete_image}\nCOPY added {site}\n{then.format(site=site)}\n")
        return real.build_image(f"dgxspark-test/import:{abs(hash(request.node.name))}", tmp_path)

    return make


def test_complete_image_agrees_with_its_files(complete_image: str) -> None:
    static, asked = real.probe(image=complete_image), real.probe(image=complete_image, method="import")
    assert static["images"][0]["known_architectures"] == asked["images"][0]["known_architectures"]
    # Any difference would be a finding.
    assert real.ids(asked) == real.ids(static) == []
    assert len(static["images"][0]["known_architectures"]) > 300
    assert real.left_behind() == []


def test_what_a_plugin_adds_is_known_only_after_asking(image: Any) -> None:
    name = image(
        {
            "raven_vllm.py": PLUGIN,
            "raven-0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: raven\nVersion: 0.1\n",
            "raven-0.1.dist-info/entry_points.txt": "[vllm.general_plugins]\nraven = raven_vllm:register\n",
        }
    )
    asked = {"image": name, "architecture": ["RavenForCausalLM", "NoneSuch"]}
    static = real.probe(**asked)["images"][0]["architectures"]
    assert [verdict["supported"] for verdict in static.values()] == [None, None]
    result = real.probe(**asked, method="import")
    assert [verdict["supported"] for verdict in result["images"][0]["architectures"].values()] == [True, False]
    assert real.ids(result) == ["REGISTRY.ARCHITECTURE_UNKNOWN"]


def test_disagreement_is_told(image: Any) -> None:
    registry = "{site}/vllm/model_executor/models"
    name = image(
        {"hidden.txt": ""},
        'RUN echo \'ModelRegistry.register_model("HiddenForCausalLM", "hidden:Hidden")\' '
        f">> {registry}/registry.py && rm -f {registry}/__pycache__/registry.*",
    )
    result = real.probe(image=name, architecture="HiddenForCausalLM", method="import")
    assert result["suitable"] == [name]
    (finding,) = result["findings"]
    assert finding["id"] == "REGISTRY.DISAGREEMENT" and "HiddenForCausalLM" in finding["message"]


@pytest.mark.parametrize(
    "code, timeout, words",
    [
        ("import time; time.sleep(600)", 3, "was not done after 3 s"),
        ("raise SystemExit(7)", 60, "ended with status 7"),
        ("open('/usr/written', 'w')", 60, "ended with status 1"),
        ("import socket; socket.create_connection(('192.0.2.1', 9), 5)", 60, "ended with status 1"),
        ("x = [bytearray(1 << 26) for _ in range(200)]", 120, "was killed, as when it needs more than 6 GiB"),
    ],
    ids=["hangs", "exits", "writes", "calls home", "hog"],
)
def test_images_that_misbehave(image: Any, code: str, timeout: int, words: str) -> None:
    # Otherwise Python would take the bytecode, which the image holds without a date.
    name = image({"vllm/plugins/__init__.py": code}, "RUN rm -r {site}/vllm/plugins/__pycache__")
    result = real.probe(image=name, method="import", timeout=timeout)
    finding = result["findings"][0]
    assert (finding["id"], words in finding["message"]) == ("REGISTRY.IMPORT_FAILED", True), finding
    assert result["suitable"] == []
    assert real.left_behind() == []


def test_sglang_notes_what_it_could_not_import(base_image: str, tmp_path: Path) -> None:
    """With a stand-in for SGLang that has the interface of the real one and logs as it does (srt/models/registry.py)."""
    site = "/usr/local/lib/python3.11/dist-packages"
    registry = (
        "import logging\n"
        "class ModelRegistry:\n    @staticmethod\n    def get_supported_archs():\n        return {'GoodForCausalLM'}\n"
        "logging.getLogger(__name__).warning('Ignore import error when loading sglang.srt.models.bad: no module x')\n"
    )
    for name, text in {
        "sglang/__init__.py": "",
        "sglang/srt/__init__.py": "",
        "sglang/srt/models/__init__.py": "",
        "sglang/srt/models/registry.py": registry,
        "sglang/srt/models/good.py": "class GoodForCausalLM: pass\nEntryClass = GoodForCausalLM\n",
        "sglang/srt/models/bad.py": "import x\nclass BadForCausalLM: pass\nEntryClass = [BadForCausalLM]\n",
        "torch/__init__.py": "class cuda:\n    get_arch_list = staticmethod(lambda: ['sm_90'])\n    is_available = staticmethod(bool)\n",
    }.items():
        place = tmp_path / "added" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (tmp_path / "Dockerfile").write_text(f"FROM {base_image}\nCOPY added {site}\n")
    image = real.build_image("dgxspark-test/import:sglang", tmp_path)
    result = real.probe(image=image, method="import", architecture=["GoodForCausalLM", "BadForCausalLM"])
    (entry,) = result["images"]
    assert {name: found["supported"] for name, found in entry["architectures"].items()} == {
        "GoodForCausalLM": True,
        "BadForCausalLM": False,
    }
    assert entry["gpu_archs"] == {"torch": ["sm_90"]}
    findings = {finding["id"]: finding["message"] for finding in result["findings"]}
    assert "Ignore import error when loading sglang.srt.models.bad" in findings["REGISTRY.IMPORT_INCOMPLETE"]
    assert "BadForCausalLM" in findings["REGISTRY.DISAGREEMENT"]
    assert real.left_behind() == []
