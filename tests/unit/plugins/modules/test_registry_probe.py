# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

import docker
import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_python as host_python
from ansible_collections.dgxspark.serving.plugins.module_utils import _image_layers as image_layers
from ansible_collections.dgxspark.serving.plugins.module_utils import _registry_probe as probe_runs
from ansible_collections.dgxspark.serving.plugins.module_utils._image_probe import ImageProbe
from ansible_collections.dgxspark.serving.plugins.modules import registry_probe
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_engine import FakeEngine, FakeImage, HardLink
from ansible_collections.dgxspark.serving.tests.unit.plugins.probe_images import (
    DIST,
    OLD_REGISTRY,
    QWEN,
    REGISTRY,
    UBUNTU_PYTHON,
    ids,
    vllm_files,
    vllm_image,
)

TRANSFORMERS_TABLE = """
CONFIG_MAPPING_NAMES = OrderedDict[str, str](
    [
        ("llama", "LlamaConfig"),
        ("qwen3_moe", "Qwen3MoeConfig"),
    ]
)
"""


@pytest.mark.parametrize(
    "number, architecture, supported, kind, finding",
    [
        ("066", "Qwen3MoeForCausalLM", True, "model", None),
        ("066", QWEN, False, None, "REGISTRY.ARCHITECTURE_UNKNOWN"),
        ("066", "Phi3SmallForCausalLM", False, "removed", "REGISTRY.ARCHITECTURE_REMOVED"),
        ("066", "Qwen9MoeForCausalLM", False, None, "REGISTRY.ARCHITECTURE_UNKNOWN"),
        ("067", QWEN, True, "model", None),
        ("067", "Qwen3_5MoeForCausalLM", False, None, "REGISTRY.ARCHITECTURE_UNKNOWN"),
        ("067", "Qwen3_5MoeMTP", False, "draft", "REGISTRY.DRAFT_ONLY"),
        ("067", "LlamaForCausalLM", True, "model", None),
        ("067", "JAISLMHeadModel", True, "model", None),
        ("067", "Phi4MultimodalForCausalLM", False, "removed", "REGISTRY.ARCHITECTURE_REMOVED"),
        ("072", QWEN, True, "model", None),
    ],
)
def test_cases_of_vllm_registries(probe, case_text, number, architecture, supported, kind, finding):
    result = probe(vllm_image(case_text(number, "registry.py")), architecture=architecture)
    extra = (
        {"last_version": {"Phi3SmallForCausalLM": "0.9.2", "Phi4MultimodalForCausalLM": "0.12.0"}[architecture]}
        if kind == "removed"
        else {}
    )
    verdict = {"supported": supported, "kind": kind, **extra}
    assert result["images"][0]["architectures"] == {architecture: verdict}
    assert ids(result) == ([finding] if finding else [])
    assert result["suitable"] == (["img"] if supported else [])


def test_case_045_message_names_version_architecture_and_the_closest(probe, case_text):
    # The registry is what the error message of the case lists.
    log = case_text("045", "log")
    known = re.findall(r"'(\w+)'", log[log.index("dict_keys(") : log.index("]) [type")])
    entries = "".join(f'    "{name}": ("module", "{name}"),\n' for name in known)
    registry = f"_TEXT = {{\n{entries}}}\n_VLLM_MODELS = {{**_TEXT}}\n"
    result = probe(vllm_image(registry, "0.14.1"), architecture=QWEN)
    (finding,) = result["findings"]
    assert finding["id"] == "REGISTRY.ARCHITECTURE_UNKNOWN"
    assert (
        finding["message"]
        == f"vLLM 0.14.1 does not know {QWEN}; the closest it knows is Qwen3VLMoeForConditionalGeneration."
    )
    assert "transformers does not help" in finding["remedy"]
    assert result["images"][0]["closest"] == {QWEN: "Qwen3VLMoeForConditionalGeneration"}


def test_case_057_image_without_ray(probe, case_text):
    versions = {package["name"]: package["version"] for package in json.loads(case_text("057", "pip-list.json"))}
    more = {
        f"{DIST}/torch/__init__.py": "",
        f"{DIST}/torch/version.py": f"__version__ = {versions['torch']!r}\ncuda: Optional[str] = '13.0'\n",
        f"{DIST}/transformers/__init__.py": f'"""doc"""\n__version__ = {versions["transformers"]!r}\n',
    }
    image = vllm_image("_VLLM_MODELS = {}", versions["vllm"], more)
    result = probe(image, require={"ray": True}, prefer={"torch": ">=2.10"})
    found = result["images"][0]["versions"]
    assert (found["ray"], found["vllm"], found["transformers"]) == (None, "0.21.0", "5.5.4")
    assert (found["torch"], found["cuda"], found["python"]) == ("2.11.0+cu130", "13.0", "3.12.3")
    (finding,) = result["findings"]
    assert (finding["id"], finding["severity"]) == ("REQUIRE.RAY", "error")
    assert "spark_backend: mp" in finding["remedy"]
    assert result["suitable"] == []


def test_old_vllm_without_ray_is_not_sent_to_the_mp_backend(probe):
    result = probe(vllm_image("_VLLM_MODELS = {}", "0.10.2"), require={"ray": True})
    assert "mp" not in result["findings"][0]["remedy"].split()


def test_case_069_plugin_leaves_the_answer_open(probe, case_text):
    entry_points = {
        "vllm-0.21.0+cu130": "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n"
        "[vllm.general_plugins]\nlora_filesystem_resolver = vllm.plugins.lora_resolvers:register\n",
        "vllm_raven_plugin-0.1": case_text("069", "entry_points.txt"),
    }
    more = dict.fromkeys(case_text("069", "tree.txt").split(), "")
    more.update({f"{DIST}/{name}.dist-info/entry_points.txt": text for name, text in entry_points.items()})
    env = ["PATH=/usr/local/bin:/usr/bin", case_text("069", "env.txt").strip()]
    image = vllm_image('_VLLM_MODELS = {"LlamaForCausalLM": ("llama", "L")}', "0.21.0+cu130", more, env=env)
    result = probe(image, architecture=["RavenForCausalLM", "LlamaForCausalLM"])
    (entry,) = result["images"]
    assert entry["plugins"] == {"register_raven": "raven_vllm:register (vllm-raven-plugin 0.1)"}
    assert entry["architectures"]["RavenForCausalLM"]["supported"] is None
    assert entry["architectures"]["LlamaForCausalLM"]["supported"] is True
    (finding,) = result["findings"]
    assert finding["id"] == "REGISTRY.PLUGIN_UNDECIDED"
    assert "register_raven" in finding["message"]
    assert "VLLM_PLUGINS to ''" in finding["message"]


def test_platform_plugin_adds_no_architecture(probe):
    more = {f"{DIST}/gaudi-1.0.dist-info/entry_points.txt": "[vllm.platform_plugins]\ngaudi = vllm_gaudi:register\n"}
    result = probe(vllm_image(OLD_REGISTRY, more=more), architecture=QWEN)
    assert ids(result) == ["REGISTRY.ARCHITECTURE_UNKNOWN"]


def test_packages_are_searched_only_when_it_can_matter(probe):
    image = vllm_image('_VLLM_MODELS = {"LlamaForCausalLM": ("llama", "L")}')
    for architecture, searched in (("LlamaForCausalLM", False), (QWEN, True)):
        engine = FakeEngine({"img": image})
        probe({"img": image}, fake=engine, architecture=architecture)
        assert (DIST in engine.streamed) is searched


@pytest.mark.parametrize(
    "architecture, supported",
    [
        (QWEN, True),
        ("Qwen3_5ForConditionalGeneration", True),
        ("Qwen3_5MoeForCausalLM", False),
        ("Qwen2MoeForCausalLM", True),
        ("InternLM3ForCausalLM", True),
    ],
)
def test_case_070_only_what_sglang_exports_counts(probe, case_text, architecture, supported):
    folder = f"{DIST}/sglang"
    files = {
        f"{folder}/srt/models/{name}": case_text("070", name) for name in ("llama.py", "qwen2_moe.py", "qwen3_5.py")
    }
    files[f"{folder}/srt/models/registry.py"] = "EntryClass = []\n"
    files[f"{folder}/__init__.py"] = ""
    files[f"{folder}/version.py"] = '__version__ = "0.5.11"\n'
    result = probe(FakeImage({**UBUNTU_PYTHON, **files}), architecture=architecture)
    (entry,) = result["images"]
    assert (entry["engine"], entry["engine_version"]) == ("sglang", "0.5.11")
    assert entry["architectures"][architecture]["supported"] is supported
    assert ids(result) == ([] if supported else ["REGISTRY.ARCHITECTURE_UNKNOWN"])


def model_config(folder: Any, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    "bundled, remote_code, expected",
    [(True, False, []), (False, False, ["REGISTRY.MODEL_TYPE_UNKNOWN"]), (False, True, [])],
)
def test_case_072_config_class_bundled_with_vllm_counts(probe, case_text, tmp_path, bundled, remote_code, expected):
    versions = json.loads(case_text("072", "versions.json"))
    more: dict[str, bytes | str] = {
        f"{DIST}/transformers/__init__.py": f"__version__ = {versions['transformers']!r}\n",
        f"{DIST}/transformers/models/auto/configuration_auto.py": TRANSFORMERS_TABLE,
    }
    if bundled:
        more[f"{versions['vllm_path']}/transformers_utils/config.py"] = case_text("072", "transformers_utils_config.py")
    auto_map = {"AutoConfig": "configuration.Config"} if remote_code else {}
    model = model_config(tmp_path, architectures=[QWEN], model_type="qwen3_5_moe", auto_map=auto_map)
    result = probe(vllm_image(case_text("072", "registry.py"), versions["vllm"], more), model_path=model)
    assert result["images"][0]["architectures"][QWEN]["supported"] is True
    assert ids(result) == expected


def test_table_of_transformers_5_lies_in_two_files(probe, tmp_path):
    auto = f"{DIST}/transformers/models/auto"
    more: dict[str, bytes | str] = {
        f"{DIST}/transformers/__init__.py": "__version__ = '5.5.4'\n",
        f"{auto}/auto_mappings.py": 'CONFIG_MAPPING_NAMES = OrderedDict([("qwen3_5_moe", "Qwen3_5MoeConfig")])\n',
        f"{auto}/configuration_auto.py": "from .auto_mappings import CONFIG_MAPPING_NAMES\n"
        'CONFIG_MAPPING_NAMES = OrderedDict(**{"gpt-sw3": "GPT2Config"}, **CONFIG_MAPPING_NAMES)\n',
    }
    image = vllm_image(REGISTRY, more=more)
    for model_type, expected in (("qwen3_5_moe", []), ("gpt-sw3", []), ("other", ["REGISTRY.MODEL_TYPE_UNKNOWN"])):
        model = model_config(tmp_path, architectures=[QWEN], model_type=model_type)
        assert ids(probe(image, model_path=model)) == expected


def test_case_076_platform_is_checked_before_anything_else(probe, case_text):
    inspect = json.loads(case_text("076", "inspect.json"))[0]
    assert case_text("076", "uname.txt").strip() == "aarch64"
    image = FakeImage({}, **inspect)
    engine = FakeEngine({"vllm/vllm-openai:v0.10.0": image}, architecture="arm64")
    result = probe(engine.held, fake=engine, architecture=QWEN)
    (finding,) = result["findings"]
    assert finding["id"] == "IMAGE.PLATFORM"
    assert "linux/amd64" in finding["message"] and "exec format error" in finding["message"]
    assert "--platform linux/arm64" in finding["remedy"]
    assert engine.created == {}
    assert result["images"][0]["platform"] == "linux/amd64"


@pytest.mark.parametrize("platform", ["linux/arm64", "linux/arm64/v8", "aarch64", "arm64"])
def test_arm64_has_many_names(probe, platform):
    image = vllm_image(REGISTRY, Variant="v8")
    assert probe(image, platform=platform, architecture=QWEN)["suitable"] == ["img"]


def test_case_077_image_without_digest_and_labels(probe, case_text):
    inspect = json.loads(case_text("077", "inspect.json"))[0]
    files = {**UBUNTU_PYTHON, "/usr/local/bin/vllm": "#!/usr/bin/python3\n", **vllm_files(REGISTRY)}
    result = probe({"vllm-node": FakeImage(files, **inspect)}, architecture=QWEN)
    (entry,) = result["images"]
    assert (entry["id"], entry["digests"], entry["platform"]) == (inspect["Id"], [], "linux/arm64")
    assert entry["engine_version"] == "0.17.1"
    assert result["suitable"] == ["vllm-node"]


def test_images_are_judged_one_by_one_in_the_order_given(probe):
    images = {
        "old": vllm_image(OLD_REGISTRY, "0.14.1"),
        "new": vllm_image(REGISTRY, "0.17.1"),
        "none": FakeImage(UBUNTU_PYTHON),
        "newer": vllm_image(REGISTRY, "0.19.0"),
    }
    result = probe(images, image=["newer", "absent", "old", "none", "new"], architecture=QWEN)
    assert result["suitable"] == ["newer", "new"]
    assert [(finding["subject"], finding["id"]) for finding in result["findings"]] == [
        ("absent", "IMAGE.ABSENT"),
        ("old", "REGISTRY.ARCHITECTURE_UNKNOWN"),
        ("none", "IMAGE.NO_ENGINE"),
    ]
    assert [entry["present"] for entry in result["images"]] == [True, False, True, True, True]
    assert result["changed"] is False
    assert "old: not suitable" in result["msg"]


def test_nothing_runs_and_nothing_stays(probe):
    image = vllm_image(REGISTRY)
    engine = FakeEngine({"img": image})
    engine.left_behind = [{"Id": "old", "Created": time.time() - 7200}, {"Id": "fresh", "Created": time.time() - 60}]
    engine.created["old"] = engine.created["fresh"] = {"image": image}
    engine.removed.append("fresh")
    probe({"img": image}, fake=engine)
    engine.removed.remove("fresh")
    (created,) = [container for name, container in engine.created.items() if name.startswith("container-")]
    assert created["labels"] == {"io.dgxspark.serving.managed": "probe"}
    assert created["host_config"] == {"network_mode": "none"}
    assert sorted(engine.removed) == ["container-2", "old"]


def test_container_is_removed_when_the_probe_fails(probe, monkeypatch):
    engine = FakeEngine({"img": vllm_image(REGISTRY)})
    monkeypatch.setattr(ImageProbe, "run", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        probe(engine.held, fake=engine)
    assert engine.removed == list(engine.created)


def test_engine_that_refuses_is_a_failure_with_the_name_of_the_image(probe, monkeypatch):
    engine = FakeEngine({"img": vllm_image(REGISTRY)})

    def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise docker.errors.APIError("no space left on device")

    monkeypatch.setattr(engine, "create_container", refuse)
    result = probe(engine.held, fake=engine)
    assert result["failed"] is True
    assert "cannot read files of image img: no space left on device" in result["msg"]


def test_case_015_settings_of_nccl_in_a_file_are_reported(probe, case_text):
    result = probe(vllm_image(REGISTRY, more={"/etc/nccl.conf": case_text("015", "etc-nccl.conf")}), architecture=QWEN)
    settings = {"NCCL_IB_USE_INLINE": "1", "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS": "1"}
    assert result["images"][0]["nccl_conf"] == settings
    assert ids(result) == ["IMAGE.NCCL_CONF"]
    assert "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS=1" in result["findings"][0]["message"]
    assert result["suitable"] == ["img"]


def test_hard_links_are_read(probe):
    folder = f"{DIST}/sglang"
    files: dict[str, bytes | str] = {
        f"{folder}/__init__.py": "",
        f"{folder}/srt/models/a.orig": "class A: ...\nEntryClass = A\n",
        f"{folder}/srt/models/b.py": HardLink(f"{folder}/srt/models/a.orig"),
        f"{folder}/srt/models/c.py": "class C: ...\nEntryClass = C\n",
    }
    (entry,) = probe(FakeImage({**UBUNTU_PYTHON, **files}))["images"]
    assert entry["known_architectures"] == {"A": "model", "C": "model"}


def test_sglang_brings_configuration_classes(probe, tmp_path):
    folder = f"{DIST}/sglang"
    files: dict[str, bytes | str] = {
        f"{folder}/__init__.py": "",
        f"{folder}/srt/models/a.py": "class A: ...\nEntryClass = A\n",
        f"{folder}/srt/configs/a.py": 'class AConfig(PretrainedConfig):\n    model_type = "a_model"\n',
        f"{DIST}/transformers/__init__.py": "",
        f"{DIST}/transformers/models/auto/configuration_auto.py": TRANSFORMERS_TABLE,
    }
    image = FakeImage({**UBUNTU_PYTHON, **files})
    for model_type, expected in (("a_model", []), ("llama", []), ("b_model", ["REGISTRY.MODEL_TYPE_UNKNOWN"])):
        model = model_config(tmp_path, architectures=["A"], model_type=model_type)
        assert ids(probe(image, model_path=model)) == expected


def test_known_architectures_only_without_a_question(probe):
    image = vllm_image(
        '_A = {"A": ("a", "A")}\n_SPECULATIVE_DECODING_MODELS = {"D": ("d", "D")}\n'
        '_VLLM_MODELS = {**_A, **_SPECULATIVE_DECODING_MODELS}\n_PREVIOUSLY_SUPPORTED_MODELS = {"R": "0.9.2"}\n'
        '_OOT_SUPPORTED_MODELS = {"P": "bart-plugin"}\n_UNUSED_MODELS = {"U": ("u", "U")}\n'
    )
    expected = {"A": "model", "D": "draft", "R": "removed", "P": "plugin"}
    assert probe(image)["images"][0]["known_architectures"] == expected
    asked = probe(image, architecture="P")
    assert asked["images"][0]["known_architectures"] == {}
    assert asked["images"][0]["architectures"]["P"] == {"supported": False, "kind": "plugin", "plugin": "bart-plugin"}
    assert ids(asked) == ["REGISTRY.PLUGIN_MISSING"]


@pytest.mark.parametrize(
    "registry, finding",
    [
        ("_VLLM_MODELS = {**computed(), 'A': 1}", "REGISTRY.INCOMPLETE"),
        ("_VLLM_MODELS = {'A': 1}\nfor name in names():\n    _VLLM_MODELS[name] = 1\n", "REGISTRY.INCOMPLETE"),
        ("def broken(:\n", "REGISTRY.UNREADABLE"),
        ("MODELS = {}", "REGISTRY.UNREADABLE"),
    ],
)
def test_no_is_not_said_without_knowing(probe, registry, finding):
    result = probe(vllm_image(registry), architecture=QWEN)
    assert result["images"][0]["architectures"][QWEN]["supported"] is None
    assert ids(result) == [finding]
    assert result["suitable"] == []


def test_engine_can_be_chosen(probe):
    more = {f"{DIST}/sglang/__init__.py": "", f"{DIST}/sglang/srt/models/l.py": "class L: ...\nEntryClass = L\n"}
    assert probe(vllm_image(REGISTRY, more=more))["images"][0]["engine"] == "vllm"
    assert probe(vllm_image(REGISTRY, more=more), engine="sglang")["images"][0]["known_architectures"] == {"L": "model"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"require": {"vllm": "newest"}}, "require: vllm: 'newest' is not a version"),
        ({"prefer": {"nccl": ">=2.30.*"}}, "prefer: nccl"),
        ({"gpu_arch": "sm_121"}, "gpu_arch: write a compute capability like 12.1"),
        ({"platform": "linux/"}, "platform: 'linux/' is not a platform"),
        ({"model_path": "/nowhere"}, "model_path: cannot read /nowhere"),
        ({"method": "import", "source": "remote"}, "method: import runs the image, which a registry cannot do"),
        ({"timeout": 0}, "timeout: give a number of seconds"),
    ],
)
def test_bad_options_are_named(probe, options, message):
    result = probe(vllm_image(REGISTRY), **options)
    assert result["failed"] is True
    assert message in result["msg"]


def test_engine_that_does_not_answer_is_a_failure(run_module, tmp_path):
    result = run_module(registry_probe, image="img", docker_host=f"unix://{tmp_path}/none.sock")
    assert result["failed"] is True
    assert "none.sock" in result["msg"]


def test_fail_on_returns_what_was_found_as_well(probe):
    result = probe(vllm_image(OLD_REGISTRY, "0.14.1"), architecture=QWEN, fail_on="error")
    assert result["failed"] is True
    assert "does not know" in result["msg"]
    assert result["images"][0]["engine_version"] == "0.14.1"


def test_absent_image_names_those_that_are_close(probe):
    images = {"vllm-node:0.17": vllm_image(REGISTRY), "other:1": vllm_image(REGISTRY)}
    result = probe(images, image=["vllm-node:0.18"])
    (finding,) = result["findings"]
    assert finding["id"] == "IMAGE.ABSENT"
    assert "It has: vllm-node:0.17." in finding["message"] and "other" not in finding["message"]


def test_summary_fits_a_terminal(probe):
    images = {"img": vllm_image(OLD_REGISTRY, "0.14.1"), "new": vllm_image(REGISTRY)}
    result = probe(images, architecture=QWEN)
    lines = result["msg"].splitlines()
    assert max(map(len, lines)) <= 72 and len(lines) <= 24
    assert "img: not suitable" in lines and "new: suitable" in lines
    assert "linux/arm64" in result["msg"] and f"  {QWEN}: supported" in lines


def test_answers_are_kept_by_image_and_question(probe, tmp_path):
    engine = FakeEngine({"img": vllm_image(REGISTRY)})
    kept = {"cache": True, "cache_path": str(tmp_path / "cache")}
    first = probe(engine.held, fake=engine, architecture=QWEN, **kept)
    created = len(engine.created)
    second = probe(engine.held, fake=engine, architecture=QWEN, **kept)
    assert len(engine.created) == created == 1
    assert (first["images"][0]["cached"], second["images"][0]["cached"]) == (False, True)
    for result in (first, second):
        del result["images"][0]["cached"], result["images"][0]["duration_ms"]
    assert first["images"] == second["images"]
    probe(engine.held, fake=engine, architecture="Other", **kept)
    assert len(engine.created) == created + 1


def test_image_without_python(probe):
    assert ids(probe(FakeImage({"/usr/local/bin/vllm": "#!/usr/bin/python3\n"}))) == ["IMAGE.NO_ENGINE"]


def test_layers_that_lead_elsewhere_are_left_to_the_engine(probe, monkeypatch, tmp_path):
    def redirected(layer: Any, path: str) -> Any:
        raise image_layers.Redirected(path)

    monkeypatch.setattr(image_layers.DiskLayer, "entry", redirected)
    driver = {"Name": "overlay2", "Data": {"UpperDir": str(tmp_path)}}
    engine = FakeEngine({"img": vllm_image(REGISTRY, GraphDriver=driver)})
    assert probe(engine.held, fake=engine, architecture=QWEN)["suitable"] == ["img"]
    assert len(engine.removed) == 1


@pytest.mark.parametrize("name", ["one", "killed", "unreachable"])
def test_images_over_worker_processes(name, monkeypatch):
    def look(self: Any, image: str) -> Any:
        if name == "killed":
            os._exit(9)
        return {"image": image, "pid": os.getpid(), "client": self.client}, []

    def connect() -> str:
        if name == "unreachable":
            raise host_python.EngineUnavailable("gone")
        return f"client of {os.getpid()}"

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(probe_runs.EngineProbe, "probe", look)
    probe = object.__new__(probe_runs.EngineProbe)
    if name != "one":
        with pytest.raises(host_python.EngineUnavailable, match=r"gone|was killed"):
            probe_runs.probe_all(probe, ["a", "b", "c"], connect)
        return
    entries = [entry for entry, _findings in probe_runs.probe_all(probe, ["a", "b", "c"], connect)]
    assert [entry["image"] for entry in entries] == ["a", "b", "c"]
    assert all(entry["pid"] != os.getpid() and entry["client"] == f"client of {entry['pid']}" for entry in entries)
