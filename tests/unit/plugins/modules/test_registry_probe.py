# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import posixpath
import re
import time
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _image_layers as image_layers
from ansible_collections.dgxspark.serving.plugins.module_utils._image_probe import ImageProbe
from ansible_collections.dgxspark.serving.plugins.modules import registry_probe
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_engine import FakeEngine, FakeImage, HardLink, Link

DIST = "/usr/local/lib/python3.12/dist-packages"
QWEN = "Qwen3_5MoeForConditionalGeneration"
UBUNTU_PYTHON: dict[str, bytes | str] = {
    "/usr/bin/python3": Link("python3.12"),
    "/usr/bin/python3.12": b"\x7fELF",
    "/usr/include/python3.12/patchlevel.h": '#define PY_VERSION              "3.12.3"\n',
}
TRANSFORMERS_TABLE = """
CONFIG_MAPPING_NAMES = OrderedDict[str, str](
    [
        ("llama", "LlamaConfig"),
        ("qwen3_moe", "Qwen3MoeConfig"),
    ]
)
"""


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


@pytest.fixture
def probe(run_module, monkeypatch):
    """Runs the module on images in memory; the result has the engine as well."""

    def run(images: dict[str, FakeImage] | FakeImage, fake: FakeEngine | None = None, **options: Any) -> dict[str, Any]:
        images = images if isinstance(images, dict) else {"img": images}
        engine = fake or FakeEngine(images)
        monkeypatch.setattr(registry_probe.host_python, "connect_engine", lambda docker_host: engine)
        # Worker processes would have copies of the engine.
        monkeypatch.setattr(os, "cpu_count", lambda: 1)
        result = run_module(registry_probe, **{"image": list(images), "cache": False, **options})
        assert sorted(engine.created) == sorted(set(engine.removed) & set(engine.created))
        return result

    return run


def ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


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


def listing(text: str) -> dict[str, str]:
    return dict(line.split(" -> ", 1) for line in text.splitlines() if " -> " in line)


REGISTRY = f'_VLLM_MODELS = {{"{QWEN}": ("qwen3_5", "{QWEN}")}}\n'
OLD_REGISTRY = '_VLLM_MODELS = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}\n'
VENV = "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.11\n"


@pytest.mark.parametrize(
    "name, path, further",
    [
        ("image-a.txt", "/usr/local/bin:/usr/bin", {}),
        ("image-b.txt", "/opt/venv/bin:/usr/local/bin:/usr/bin", {"/opt/venv/pyvenv.cfg": VENV}),
        (
            "image-c.txt",
            "/workspace/vllm:/usr/local/bin:/usr/bin",
            {"/workspace/vllm/run-cluster-node.sh": "#!/bin/bash\n", "/workspace/vllm/tiktoken_encodings/x": ""},
        ),
        ("image-d.txt", "/usr/local/bin:/usr/bin", {}),
        (
            "image-e.txt",
            "/opt/vllm/bin:/usr/local/bin:/usr/bin",
            {
                "/opt/vllm/pyvenv.cfg": VENV,
                **vllm_files(OLD_REGISTRY, "0.9.0"),
                **vllm_files(OLD_REGISTRY, "0.9.0", "/patches/vllm"),
            },
        ),
    ],
)
def test_case_073_engine_is_what_python_imports(probe, case_text, name, path, further):
    facts = listing(case_text("073", name))
    script = facts.get("which vllm", "/usr/local/bin/vllm")
    shebang = next((value for key, value in facts.items() if key.startswith("head -1")), "")
    if not shebang:
        shebang = "#!/opt/vllm/bin/python3" if script.startswith("/opt/") else "#!/usr/bin/python3"
    origin = next(value for key, value in facts.items() if key.startswith("find_spec"))
    files: dict[str, bytes | str] = {**UBUNTU_PYTHON, script: f"{shebang}\n", **further}
    interpreter = shebang[2:]
    if interpreter not in files:
        files[interpreter] = Link("/usr/bin/python3.12")
    version = facts.get("vllm.__version__", "0.17.1")
    folder = posixpath.dirname(origin)
    files.update(vllm_files(REGISTRY, version, folder))
    for key, value in facts.items():
        pth = re.fullmatch(r"cat (/\S+\.pth)", key)
        if pth:
            files[pth[1]] = f"{value}\n"
            files[f"{DIST}/aaa/__init__.py"] = ""
            files[f"{DIST}/zzz/__init__.py"] = ""
    result = probe(FakeImage(files, env=[f"PATH={path}"], WorkingDir="/workspace/vllm"), architecture=QWEN)
    (entry,) = result["images"]
    assert entry["engine_path"] == folder
    assert entry["engine_version"] == version
    assert entry["editable"] is (name == "image-d.txt")
    assert entry["architectures"][QWEN]["supported"] is True
    if name == "image-b.txt":
        assert entry["versions"]["python"] == "3.12.11"


def test_case_073_development_build_does_not_meet_a_release(probe, case_text):
    version = listing(case_text("073", "image-d.txt"))["vllm.__version__"]
    result = probe(vllm_image(REGISTRY, version), architecture=QWEN, require={"vllm": ">=0.17"})
    (finding,) = result["findings"]
    assert (finding["id"], finding["severity"]) == ("REQUIRE.VLLM", "warning")
    assert "development build 0.1.dev16260" in finding["message"]
    assert result["suitable"] == ["img"]


@pytest.mark.parametrize(
    "more, path",
    [
        (
            {
                f"{DIST}/__editable___vllm_0_17_1_finder.py": "MAPPING: dict[str, str] = {'vllm': '/src/vllm/vllm'}\n",
                f"{DIST}/__editable__.vllm-0.17.1.pth": "import __editable___vllm_0_17_1_finder; install()\n",
            },
            "/src/vllm/vllm",
        ),
        ({f"{DIST}/easy-install.pth": "# comment\n/root/vllm\n"}, "/root/vllm/vllm"),
    ],
    ids=["finder module", "easy-install"],
)
def test_editable_installs(probe, more, path):
    script = {"/usr/local/bin/vllm": "#!/usr/bin/env python3\n"}
    image = FakeImage({**UBUNTU_PYTHON, **script, **more, **vllm_files(REGISTRY, "0.17.1", path)})
    assert probe(image, architecture=QWEN)["images"][0]["engine_path"] == path


def test_python_path_goes_first(probe):
    files = {**UBUNTU_PYTHON, "/usr/local/bin/vllm": "#!/usr/bin/python3\n", **vllm_files(OLD_REGISTRY, "0.9.0")}
    files.update(vllm_files(REGISTRY, "0.17.1", "/patched/vllm"))
    image = FakeImage(files, env=["PATH=/usr/local/bin:/usr/bin", "PYTHONPATH=/patched"])
    assert probe(image, architecture=QWEN)["images"][0]["engine_version"] == "0.17.1"


@pytest.mark.parametrize(
    "script",
    [
        "#!/opt/env/bin/python3\n",
        "#!/bin/sh\n'''exec' '/opt/env/bin/python3' \"$0\" \"$@\"\n' '''\n".replace(
            "'/opt/env/bin/python3'", '"/opt/env/bin/python3"'
        ),
        "#!/bin/sh\n'''exec' /opt/env/bin/python3 \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_interpreter_is_read_from_the_script(probe, script):
    files = {
        **UBUNTU_PYTHON,
        "/usr/local/bin/vllm": script,
        "/opt/env/bin/python3": Link("/usr/bin/python3.12"),
        "/opt/env/pyvenv.cfg": "version_info = 3.12.9\n",
        **vllm_files(REGISTRY, "0.17.1", "/opt/env/lib/python3.12/site-packages/vllm"),
        **vllm_files(OLD_REGISTRY, "0.9.0"),
    }
    (entry,) = probe(FakeImage(files), architecture=QWEN)["images"]
    assert (entry["engine_version"], entry["versions"]["python"]) == ("0.17.1", "3.12.9")


@pytest.mark.parametrize(
    "files, version",
    [
        (
            {"/var/lib/dpkg/status": "Package: python3.12\nArchitecture: arm64\nVersion: 3.12.7-1ubuntu0.8\n\n"},
            "3.12.7",
        ),
        ({}, "3.12"),
    ],
)
def test_version_of_the_distributions_python(probe, files, version):
    image = vllm_image(REGISTRY, more=files)
    del image.files["/usr/include/python3.12/patchlevel.h"]
    assert probe(image)["images"][0]["versions"]["python"] == version


def test_python_that_uv_installed(probe):
    base = "/root/.local/share/uv/python/cpython-3.12.11-linux-aarch64-gnu"
    files = {
        "/opt/env/bin/vllm": "#!/opt/env/bin/python\n",
        "/opt/env/bin/python": Link(f"{base}/bin/python3.12"),
        f"{base}/bin/python3.12": b"\x7fELF",
    }
    env = ["PATH=/opt/env/bin:/usr/bin"]
    plain = vllm_files(REGISTRY, "0.17.1", f"{base}/lib/python3.12/site-packages/vllm")
    (entry,) = probe(FakeImage({**files, **plain}, env=env))["images"]
    assert (entry["engine_version"], entry["versions"]["python"]) == ("0.17.1", "3.12.11")
    venv = vllm_files(REGISTRY, "0.19.0", "/opt/env/lib/python3.12/site-packages/vllm")
    (entry,) = probe(FakeImage({**files, **plain, **venv, "/opt/env/pyvenv.cfg": "home = x\n"}, env=env))["images"]
    assert (entry["engine_version"], entry["versions"]["python"]) == ("0.19.0", "3.12")


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
        raise registry_probe.host_python.docker.errors.APIError("no space left on device")

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
