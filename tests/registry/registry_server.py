# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real registry of images (docker-registry) on the loopback, for tests and benchmarks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import real


@dataclass(frozen=True)
class Registry:
    """A running docker-registry. name: host:port."""

    name: str
    authority: str = ""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def serve(folder: Path, more: str = "", authority: str = "") -> Iterator[Registry]:
    port = _free_port()
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http:\n  addr: 127.0.0.1:{port}\n{more}"
    )
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log, env=environment
        )
    try:
        for _attempt in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield Registry(f"127.0.0.1:{port}", authority)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def push(image: str, registry: Registry, name: str, environment: Mapping[str, str] | None = None) -> str:
    remote = f"{registry.name}/{name}"
    real.docker("tag", image, remote)
    try:
        real.docker("push", "-q", remote, env={**os.environ, **(environment or {})})
    finally:
        real.docker("rmi", remote)
    return remote
