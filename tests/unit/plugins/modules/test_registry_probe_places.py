# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where engines and interpreters lie in images."""

from __future__ import annotations

import posixpath
import re

import pytest
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_engine import FakeImage, Link
from ansible_collections.dgxspark.serving.tests.unit.plugins.probe_images import (
    DIST,
    OLD_REGISTRY,
    QWEN,
    REGISTRY,
    UBUNTU_PYTHON,
    vllm_files,
    vllm_image,
)


def listing(text: str) -> dict[str, str]:
    return dict(line.split(" -> ", 1) for line in text.splitlines() if " -> " in line)


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
