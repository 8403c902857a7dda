# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import tarfile

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _tar_stream as tar_stream

LONG = "/".join(["folder" * 8] * 6) + "/" + "n" * 120
CONTENT = {"a.txt": b"a", f"{LONG}.txt": b"long" * 300, "empty": b"", "ümlaut": b"u", "zero": bytes(5000)}


def archive(kind: int) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=kind) as made:
        for name, content in CONTENT.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, LONG
        made.addfile(link)
    return body.getvalue()


class Dribble(io.BytesIO):
    """Gives less than was asked for, as sockets do."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 100))


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("source", [io.BytesIO, Dribble])
def test_same_as_tarfile(kind: int, source: type[io.BytesIO]) -> None:
    found = {}
    for member in tar_stream.members(source(archive(kind))):
        found[member.name] = member.target if member.kind == tar_stream.LINK else member.read()
    assert found == {**CONTENT, "link": LONG}


def test_content_need_not_be_read() -> None:
    assert [member.name for member in tar_stream.members(io.BytesIO(archive(tarfile.GNU_FORMAT)))] == [*CONTENT, "link"]


@pytest.mark.parametrize("length", [100, 600, 2000])
def test_cut_archive(length: int) -> None:
    with pytest.raises(tar_stream.TarError):
        for member in tar_stream.members(io.BytesIO(archive(tarfile.PAX_FORMAT)[:length])):
            member.read()


def test_damaged_header() -> None:
    body = bytearray(archive(tarfile.GNU_FORMAT))
    body[0] ^= 1
    with pytest.raises(tar_stream.TarError, match="damaged"):
        list(tar_stream.members(io.BytesIO(bytes(body))))


@pytest.mark.parametrize("size", [b"5 size=x\n", b"11 size=-1\n", b"9 size=x\n"])
def test_sizes_that_are_none(size: bytes) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(size)
    follows = tarfile.TarInfo("file").tobuf(tarfile.GNU_FORMAT)
    body = header.tobuf(tarfile.GNU_FORMAT) + size.ljust(512, b"\0") + follows
    try:
        assert all(member.size == 0 for member in tar_stream.members(io.BytesIO(body)))
    except tar_stream.TarError as error:
        assert "size" in str(error)
