# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Images in a registry, good ones and bad ones."""

from __future__ import annotations

import base64
import email.utils
import gzip
import json
import resource
import tarfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _registry_client as registry_client
from ansible_collections.dgxspark.serving.plugins.modules import registry_probe
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_registry import (
    INDEX,
    MANIFEST,
    FakeRegistry,
    digest,
    layer,
)

DIST = "/usr/local/lib/python3.12/dist-packages"
QWEN = "Qwen3_5MoeForConditionalGeneration"
REGISTRY = f'_VLLM_MODELS = {{"{QWEN}": ("qwen3_5", "Q")}}'.encode()
PYTHON = {"/usr/bin/python3": "python3.12", "/usr/bin/python3.12": b"\x7fELF"}
ENGINE: dict[str, Any] = {
    "/usr/local/bin/vllm": b"#!/usr/bin/python3\n",
    f"{DIST}/vllm/__init__.py": b"",
    f"{DIST}/vllm/_version.py": b"__version__ = version = '0.17.1'\n",
    f"{DIST}/vllm/model_executor/models/registry.py": REGISTRY,
}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRegistry]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = FakeRegistry()
    yield server
    server.close()


@pytest.fixture
def probe(run_module, registry):
    def run(image: str = "img:1", **options: Any) -> dict[str, Any]:
        given = {"source": "remote", "platform": "linux/arm64", "cache": False, "registry_plain_http": True, **options}
        return run_module(registry_probe, image=f"{registry.name}/{image}", **given)

    return run


def ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


def log_in(folder: Path, registry: FakeRegistry, text: str = "user:secret") -> None:
    auth = base64.b64encode(text.encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {registry.name: {"auth": auth}}}))


def test_newest_layer_is_enough_for_a_yes(registry, probe):
    registry.image(layer({**PYTHON, "/big": b"x" * 100_000}), layer(ENGINE))
    result = probe(architecture=QWEN)
    (entry,) = result["images"]
    assert result["suitable"] == [entry["image"]]
    assert (entry["engine_version"], entry["versions"]["python"], entry["complete"]) == ("0.17.1", "3.12", False)
    assert sum("/blobs/" in path for path, _authorization in registry.requests) == 2
    assert 0 < entry["bytes_read"] < entry["size"] + 2000


def test_no_takes_all_layers(registry, probe):
    registry.image(layer(PYTHON), layer(ENGINE))
    result = probe(architecture="Qwen9ForCausalLM")
    assert ids(result) == ["REGISTRY.ARCHITECTURE_UNKNOWN"]
    assert result["images"][0]["complete"] is True


@pytest.mark.parametrize("options, version", [({"require": {"ray": True}}, "2.55.0"), ({}, None)])
def test_what_is_asked_for_is_looked_for_in_older_layers(registry, probe, options, version):
    ray = {f"{DIST}/ray/__init__.py": b"", f"{DIST}/ray/_version.py": b'version = "2.55.0"\n'}
    registry.image(layer({**PYTHON, **ray}), layer(ENGINE))
    result = probe(architecture=QWEN, **options)
    assert result["suitable"] and result["images"][0]["versions"]["ray"] == version


@pytest.mark.parametrize(
    "upper, version",
    [
        ({f"{DIST}/ray/_version.py": b'version = "2.60.0"\n'}, "2.60.0"),
        ({f"{DIST}/.wh.ray": b""}, None),
        ({f"{DIST}/ray/.wh.__init__.py": b""}, None),
        ({f"{DIST}/ray/.wh..wh..opq": b""}, None),
        ({f"{DIST}/.wh.ray": b"", f"{DIST}/ray": None, f"{DIST}/ray/new.py": b""}, None),
        ({f"{DIST}/ray": None, f"{DIST}/ray/new.py": b"", f"{DIST}/.wh.ray": b""}, None),
        ({"/usr/local/lib/.wh..wh..opq": b""}, None),
        ({f"{DIST}/.wh.rayon": b""}, "2.55.0"),
    ],
)
def test_whiteouts_and_overwritten_files(registry, probe, upper, version):
    ray = {f"{DIST}/ray/__init__.py": b"", f"{DIST}/ray/_version.py": b'version = "2.55.0"\n'}
    registry.image(layer({**PYTHON, **ray}), layer({**upper}), layer(ENGINE))
    assert probe(require={"ray": True})["images"][0]["versions"]["ray"] == version


def test_engine_that_a_newer_layer_removes(registry, probe):
    registry.image(layer({**PYTHON, **ENGINE}), layer({f"{DIST}/.wh.vllm": b""}))
    assert ids(probe(architecture=QWEN)) == ["IMAGE.NO_ENGINE"]


def test_links_and_hard_links_across_layers(registry, probe):
    hard = tarfile.TarInfo(f"{DIST}/vllm/_version.py".lstrip("/"))
    hard.type, hard.linkname = tarfile.LNKTYPE, f"{DIST}/vllm/version_.py".lstrip("/")
    engine = {
        **ENGINE,
        f"{DIST}/vllm/version_.py": ENGINE[f"{DIST}/vllm/_version.py"],
        f"{DIST}/vllm/_version.py": None,
    }
    moved = {
        path.replace("/usr/local/lib/", "/data/"): content for path, content in engine.items() if content is not None
    }
    hard.name, hard.linkname = (name.replace("usr/local/lib/", "data/") for name in (hard.name, hard.linkname))
    registry.image(layer({**PYTHON, "/usr/local/lib": "../../data"}), layer({**moved, "hard": hard}))
    (entry,) = probe(architecture=QWEN)["images"]
    assert (entry["suitable"], entry["engine_version"]) == (True, "0.17.1")


def test_layers_without_compression_and_of_several_gzip_members(registry, probe):
    plain = layer(ENGINE, compress=False)
    two = layer({**PYTHON}, compress=False)
    registry.image(gzip.compress(two[:700]) + gzip.compress(two[700:]), plain)
    result = probe(architecture="Qwen9ForCausalLM")
    assert (ids(result), result["images"][0]["complete"]) == (["REGISTRY.ARCHITECTURE_UNKNOWN"], True)


def test_case_075_attestations_are_no_platforms(registry, probe, case_text):
    index = json.loads(case_text("075", "index.json"))
    image = registry.image(layer({**PYTHON, **ENGINE}))
    index["manifests"][1]["digest"] = image["digest"]
    registry.document(index, "2")
    result = probe("img:2", architecture=QWEN)
    assert result["suitable"] and result["images"][0]["platform"] == "linux/arm64"
    (finding,) = probe("img:2", platform="linux/riscv64")["findings"]
    assert (finding["id"], "linux/amd64, linux/arm64;" in finding["message"]) == ("IMAGE.PLATFORM", True)


def test_case_079_arm64_is_v8_and_never_arm(registry, probe, case_text):
    index = json.loads(case_text("079", "manifest-list.json"))
    image = registry.image(layer({**PYTHON, **ENGINE}))
    index["manifests"][2]["digest"] = image["digest"]
    registry.document(index, "2")
    for platform in ("linux/arm64", "linux/arm64/v8", "aarch64"):
        assert probe("img:2", platform=platform, architecture=QWEN)["suitable"]
    del index["manifests"][2]
    registry.document(index, "3")
    assert ids(probe("img:3")) == ["IMAGE.PLATFORM"]


def test_case_076_platform_of_a_single_image_is_checked_before_its_layers(registry, probe):
    registry.image(layer(ENGINE), architecture="amd64")
    assert ids(probe()) == ["IMAGE.PLATFORM"]
    assert sum("/blobs/" in path for path, _authorization in registry.requests) == 1


def test_basic_login_from_the_configuration_of_docker_and_from_options(registry, probe, tmp_path):
    registry.image(layer({**PYTHON, **ENGINE}))
    wanted = "Basic " + base64.b64encode(b"user:secret").decode()
    registry.answer = lambda path, given: (
        None if given == wanted else (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")
    )
    (finding,) = probe()["findings"]
    assert finding["id"] == "REMOTE.UNAUTHORIZED" and "wants a login" in finding["message"]
    log_in(tmp_path, registry, "user:wrong")
    (finding,) = probe()["findings"]
    assert finding["id"] == "REMOTE.UNAUTHORIZED" and "does not let this user in" in finding["message"]
    log_in(tmp_path, registry)
    assert probe(architecture=QWEN)["suitable"]
    (tmp_path / "config.json").unlink()
    result = probe(architecture=QWEN, registry_username="user", registry_password="secret")
    assert result["suitable"] and "secret" not in json.dumps({**result, "invocation": None})


def test_bearer_login(registry, probe, tmp_path):
    registry.image(layer({**PYTHON, **ENGINE}))
    log_in(tmp_path, registry)
    realm = f"http://{registry.name}/token"
    challenge = f'Bearer realm="{realm}",service="registry",scope="repository:img:pull"'

    def answer(path: str, given: str) -> tuple[int, dict[str, str], bytes] | None:
        if path.startswith("/token"):
            return 200, {}, b'{"token": "abc"}'
        return None if given == "Bearer abc" else (401, {"WWW-Authenticate": challenge}, b"")

    registry.answer = answer
    assert probe(architecture=QWEN)["suitable"]
    asked, given = next(request for request in registry.requests if request[0].startswith("/token"))
    assert "service=registry" in asked and "scope=repository%3Aimg%3Apull" in asked
    assert base64.b64decode(given.removeprefix("Basic ")) == b"user:secret"


def test_a_helper_of_docker_is_asked(registry, probe, tmp_path, monkeypatch):
    registry.image(layer({**PYTHON, **ENGINE}))
    wanted = "Basic " + base64.b64encode(b"user:secret").decode()
    registry.answer = lambda path, given: None if given == wanted else (401, {"WWW-Authenticate": "Basic"}, b"")
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\necho \'{"Username": "user", "Secret": "secret"}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "config.json").write_text('{"credsStore": "test"}')
    assert probe(architecture=QWEN)["suitable"]
    (tmp_path / "config.json").write_text('{"credsStore": "missing"}')
    assert ids(probe()) == ["REMOTE.REFERENCE"]


def test_password_is_not_sent_to_a_login_without_tls_of_a_registry_with_tls():
    reference = registry_client.Reference.parse("registry.example/img:1")
    client = registry_client.RegistryClient(reference, registry_client.Access())
    answer: Any = type("Answer", (), {"headers": {"WWW-Authenticate": 'Bearer realm="http://elsewhere.example/token"'}})
    with pytest.raises(registry_client.RegistryError, match="not sent there"):
        client._login(answer)


@pytest.mark.parametrize(
    "status, headers, expected",
    [
        (404, {}, "IMAGE.ABSENT"),
        (403, {}, "REMOTE.UNAUTHORIZED"),
        (500, {}, "REMOTE.SERVER_ERROR"),
        (429, {"Retry-After": "3600"}, "REMOTE.RATE_LIMITED"),
        (429, {"Retry-After": email.utils.formatdate(time.time() + 3600, usegmt=True)}, "REMOTE.RATE_LIMITED"),
        (429, {"Retry-After": "0"}, "REMOTE.RATE_LIMITED"),
        (200, {}, "REMOTE.MALFORMED"),
    ],
)
def test_answers_of_registries(registry, probe, status, headers, expected):
    registry.answer = lambda path, given: (status, headers, b"")
    result = probe()
    assert ids(result) == [expected]
    assert result["suitable"] == []


def test_retry_after_is_waited_for(registry, probe, monkeypatch):
    registry.image(layer({**PYTHON, **ENGINE}))
    waits: list[float] = []
    monkeypatch.setattr(registry_client.time, "sleep", waits.append)
    refusals = [(429, {"Retry-After": "7"}, b"")] * 2
    registry.answer = lambda path, given: refusals.pop() if refusals else None
    assert probe(architecture=QWEN)["suitable"]
    assert waits == [7.0, 7.0]


def test_truncated_and_replaced_bodies(registry, probe):
    image = registry.image(layer({**PYTHON, "/a": bytes(range(256)) * 999}), layer({"/b": b"b"}))
    manifest = json.loads(registry.content[image["digest"]][1])
    lowest, config = manifest["layers"][0]["digest"], manifest["config"]["digest"]

    def instead(name: str, body: bytes, length: int) -> list[str]:
        registry.answer = lambda path, given: (200, {"Content-Length": str(length)}, body) if name in path else None
        found = ids(probe())
        registry.answer = lambda path, given: None
        return found

    for name in (lowest, config):
        whole = registry.content[name][1]
        assert instead(name, whole[: len(whole) // 2], len(whole)) == ["REMOTE.TRUNCATED"]
        assert instead(name, whole[:-1] + b"!", len(whole)) in (["REMOTE.WRONG_DIGEST"], ["REMOTE.MALFORMED"])
    assert instead(lowest, layer({"/c": b"c"}), len(layer({"/c": b"c"}))) == ["REMOTE.TRUNCATED"]
    document = registry.content["1"][1]
    registry.answer = lambda path, given: (
        (200, {"Docker-Content-Digest": digest(b"other")}, document) if "manifests" in path else None
    )
    assert ids(probe()) == ["REMOTE.WRONG_DIGEST"]


def test_same_length_but_other_bytes_is_a_wrong_digest(registry, probe):
    good, bad = (layer({"/c": text}, compress=False) for text in (b"good", b"evil"))
    registry.image(good)
    registry.answer = lambda path, given: (200, {}, bad) if digest(good) in path else None
    assert ids(probe()) == ["REMOTE.WRONG_DIGEST"]


def test_silence_and_time_limit(registry, probe, monkeypatch):
    registry.image(layer({**PYTHON, **ENGINE}))
    monkeypatch.setattr(registry_client, "_SILENCE_SECONDS", 0.2)
    registry.answer = lambda path, given: time.sleep(0.6)  # type: ignore[func-returns-value]
    assert ids(probe()) == ["REMOTE.TIMEOUT"]
    registry.answer = lambda path, given: None
    monkeypatch.setattr(
        registry_client.Blob, "deadline", property(lambda self: 0.0, lambda self, value: None), raising=False
    )
    assert ids(probe()) == ["REMOTE.TIMEOUT"]


def test_proxy_of_the_environment(registry, run_module, monkeypatch):
    registry.image(layer({**PYTHON, **ENGINE}))
    monkeypatch.setenv("http_proxy", f"http://{registry.name}")
    monkeypatch.delenv("no_proxy", raising=False)
    usual = registry.usual
    registry.answer = lambda path, given: usual(path.removeprefix("http://registry.invalid"))
    asked = {"source": "remote", "platform": "linux/arm64", "cache": False, "registry_plain_http": True}
    result = run_module(registry_probe, image="registry.invalid/img:1", architecture=QWEN, **asked)
    assert result["suitable"] == ["registry.invalid/img:1"]
    assert all(path.startswith("http://registry.invalid/v2/img/") for path, _given in registry.requests)


def test_registry_that_is_not_there(probe, registry):
    registry.close()
    assert ids(probe()) == ["REMOTE.UNREACHABLE"]


def test_text_that_is_no_reference(run_module):
    result = run_module(registry_probe, image="Not a reference!", source="remote", platform="linux/arm64", cache=False)
    assert ids(result) == ["REMOTE.REFERENCE"]


def member(name: str, kind: bytes, **attributes: Any) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type = kind
    for attribute, value in attributes.items():
        setattr(found, attribute, value)
    return found


@pytest.mark.parametrize("name", ["../../etc/passwd", "usr/../../etc/passwd"])
def test_paths_out_of_the_image_are_refused(registry, probe, name):
    registry.image(layer({**PYTHON, **ENGINE, "evil": member(name, tarfile.REGTYPE)}))
    (finding,) = probe(architecture="X")["findings"]
    assert finding["id"] == "REMOTE.MALFORMED" and "outside of the image" in finding["message"]


def test_links_devices_and_loops_harm_nobody(registry, probe):
    bad = {
        "/etc/nccl.conf": "/proc/self/environ",
        f"{DIST}/ray": "/etc",
        f"{DIST}/torch/__init__.py": b"",
        f"{DIST}/torch/version.py": "version.py",
        "/loop": "/loop2/x",
        "/loop2": "/loop",
        "device": member("dev/sda", tarfile.BLKTYPE, devmajor=8),
        "pipe": member("usr/local/bin/python3", tarfile.FIFOTYPE),
    }
    registry.image(layer({**PYTHON, **ENGINE, **bad}))
    result = probe(architecture=QWEN, prefer={"ray": True, "torch": True})
    assert result["suitable"] and ids(result) == ["REQUIRE.RAY", "REQUIRE.TORCH"]
    assert result["images"][0]["nccl_conf"] == {}


def test_file_of_10_gb_is_passed_in_bounded_memory(registry, probe):
    header = member("huge", tarfile.REGTYPE, size=10 * 1024**3).tobuf()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    # 256 MB of it, then the stream ends: what a bomb of zeros does to memory shows long before.
    body = (
        squeeze.compress(header) + b"".join(squeeze.compress(bytes(1024**2)) for _part in range(256)) + squeeze.flush()
    )
    registry.image(body)
    assert ids(probe()) == ["REMOTE.MALFORMED"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@pytest.mark.parametrize(
    "body",
    [b"", b"no tar at all" * 100, layer(ENGINE)[:200], member("x" * 50, b"x", size=2**40).tobuf(tarfile.GNU_FORMAT)],
    ids=["empty", "text", "cut gzip", "huge extended header"],
)
def test_layers_that_are_none(registry, probe, body):
    registry.image(body)
    result = probe()
    assert ids(result) == (["IMAGE.NO_ENGINE"] if not body else ["REMOTE.MALFORMED"])


@pytest.mark.parametrize(
    "content", [{"mediaType": MANIFEST}, {"mediaType": INDEX, "manifests": [3, {}]}, {"mediaType": "v1"}]
)
def test_documents_that_are_no_images(registry, probe, content):
    registry.document(content, "2")
    assert ids(probe("img:2")) in (["REMOTE.MALFORMED"], ["IMAGE.PLATFORM"])


def test_same_answer_is_not_read_twice(registry, probe, tmp_path):
    registry.image(layer({**PYTHON, **ENGINE}))
    options = {"cache": True, "cache_path": str(tmp_path / "cache"), "architecture": QWEN}
    first, second = probe(**options), probe(**options)
    assert [result["images"][0]["cached"] for result in (first, second)] == [False, True]
    assert second["images"][0]["bytes_read"] < first["images"][0]["bytes_read"]
    assert second["suitable"] == first["suitable"] != []
