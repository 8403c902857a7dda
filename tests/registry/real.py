# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Real packages, images made of them, and a real registry. Images carry a label and are removed at the end."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
LABEL = "io.dgxspark.test=1"
MODULE = "ansible_collections.dgxspark.serving.plugins.modules.registry_probe"
PACKAGES = Path(os.environ.get("DGXSPARK_CACHE", "/var/cache/dgxspark-ci")) / "packages"
SITE = "/usr/local/lib/python3.12/dist-packages"
# Wheels of Linux on x86-64 carry one of these.
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 28, 31, 34, 35)] + ["manylinux2014_x86_64", "any"]
# What decides about an answer; a whole package has hundreds of MB.
_WANTED = (
    "/__init__.py",
    "/_version.py",
    "/version.py",
    "/model_executor/models/registry.py",
    "/reasoning/",
    "/tool_parsers/",
    "/transformers_utils/",
    "/srt/models/",
    "/srt/configs/",
    "/srt/parser/",
    "/srt/function_call/",
    "/srt/reasoning_parser.py",
    ".dist-info/",
)


def _download(name: str, version: str, folder: str) -> zipfile.ZipFile:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "-d", folder]
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    subprocess.run(
        [*command, "--only-binary=:all:", "--python-version", "312", *platforms, f"{name}=={version}"],
        check=True,
        stdout=subprocess.PIPE,
    )
    (wheel,) = Path(folder).glob("*.whl")
    return zipfile.ZipFile(wheel)


def package_files(name: str, version: str) -> dict[str, bytes]:
    """Files of a package from PyPI by their path in site-packages. Kept outside of the checkout."""
    kept = PACKAGES / f"{name}-{version}.zip"
    if not kept.exists():
        PACKAGES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PACKAGES) as scratch:
            with (
                _download(name, version, scratch) as whole,
                zipfile.ZipFile(f"{scratch}/kept", "w", zipfile.ZIP_DEFLATED) as part,
            ):
                for path in whole.namelist():
                    if path.endswith((".py", "/METADATA", "/WHEEL", "/entry_points.txt")) and any(
                        word in path for word in _WANTED
                    ):
                        part.writestr(path, whole.read(path))
            shutil.move(f"{scratch}/kept", kept)
    with zipfile.ZipFile(kept) as archive:
        return {path: archive.read(path) for path in archive.namelist()}


def wheel_file(name: str, version: str, path: str) -> bytes:
    """One file of a package from PyPI. Kept outside of the checkout."""
    kept = PACKAGES / f"{name}-{version}-{path.replace('/', '-')}"
    if not kept.exists():
        PACKAGES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PACKAGES) as scratch:
            with _download(name, version, scratch) as whole:
                Path(f"{scratch}/kept").write_bytes(whole.read(path))
            shutil.move(f"{scratch}/kept", kept)
    return kept.read_bytes()


def image_of(name: str, version: str) -> dict[str, bytes | str]:
    """Files of an image with the package; a str is a symbolic link."""
    files: dict[str, bytes | str] = {
        f"{SITE}/{path}": content for path, content in package_files(name, version).items()
    }
    engine = name.partition("-")[0]
    files["/usr/bin/python3"] = "python3.12"
    files["/usr/bin/python3.12"] = b"\x7fELF"
    files[f"/usr/local/bin/{engine}"] = b"#!/usr/bin/python3\nimport sys\n"
    return files


def tar_of(files: dict[str, bytes | str]) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path.lstrip("/"))
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size, member.mode = len(content), 0o755
                archive.addfile(member, io.BytesIO(content))
    return body.getvalue()


def docker(*arguments: str, **options: Any) -> str:
    done = subprocess.run(["docker", *arguments], check=True, capture_output=True, **options)
    return done.stdout.decode()


def make_image(name: str, archive: bytes, *changes: str) -> str:
    words = [word for change in (f"LABEL {LABEL}", *changes) for word in ("--change", change)]
    docker("import", "--platform", "linux/amd64", *words, "-", name, input=archive)
    return name


def build_image(name: str, folder: Path, *options: str) -> str:
    """With the Dockerfile of the folder: several layers, as the engine makes them."""
    docker("build", "-q", *options, "--label", LABEL, "-t", name, str(folder))
    return name


def remove_images() -> None:
    found = docker("images", "-q", "--no-trunc", "--filter", f"label={LABEL}").split()
    if found:
        subprocess.run(
            ["docker", "rmi", "-f", *sorted(set(found))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


def left_behind() -> list[str]:
    """Containers of probes."""
    return docker("ps", "-aq", "--filter", "label=io.dgxspark.serving.managed=probe").split()


def probe(environment: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
    """What the module returns; as a host would run it, in a process of its own."""
    options = {"cache": False, "platform": "linux/amd64", **options}
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": options}).encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / ".collections"), **(environment or {})},
        timeout=600,
        check=False,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]
