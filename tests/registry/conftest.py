# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
import real
from registry_server import Registry, serve


@pytest.fixture(scope="session", autouse=True)
def no_images_stay() -> Iterator[None]:
    yield
    real.remove_images()
    assert real.left_behind() == []


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    yield from serve(tmp_path_factory.mktemp("registry"))


@pytest.fixture(scope="session")
def closed_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """With TLS by an authority that nobody knows, for user "user" with password "secret"."""
    folder = tmp_path_factory.mktemp("closed")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    users = subprocess.run(["htpasswd", "-Bbn", "user", "secret"], check=True, capture_output=True).stdout
    (folder / "users").write_bytes(users)
    more = (
        f"  tls: {{certificate: {folder}/cert.pem, key: {folder}/key.pem}}\n"
        f"auth: {{htpasswd: {{realm: test, path: {folder}/users}}}}\n"
    )
    yield from serve(folder, more, f"{folder}/cert.pem")


def _lab_image(name: str, variable: str) -> str:
    listed = real.docker("images", "--format", "{{.Repository}}:{{.Tag}}", f"dgxspark-lab/{name}")
    found = os.environ.get(variable, "") or listed.partition("\n")[0]
    if not found:
        pytest.skip(f"needs the lab's image {name}: make lab-up, or {variable}")
    return found


@pytest.fixture(scope="session")
def complete_image() -> str:
    """The complete vLLM image of the lab, on this host."""
    return _lab_image("vllm", "DGXSPARK_VLLM_IMAGE")


@pytest.fixture(scope="session")
def base_image() -> str:
    """Debian 12 with its Python 3.11."""
    return _lab_image("base", "DGXSPARK_BASE_IMAGE")
