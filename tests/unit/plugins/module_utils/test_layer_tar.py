"""A layer is given back byte for byte, from any offset, out of its folder and the engine's notes."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _layer_tar as layer_tar
from ansible_collections.dgxspark.serving.plugins.module_utils._layer_tar import LayerTar, LayerTarError, tar_size
from ansible_collections.dgxspark.serving.tests.unit.plugins.classic_store import take_apart

FILES = {"a/empty": b"", "a/small": b"small" * 30, "b/large": bytes(range(256)) * 9000, "b/\u00e4": b"umlaut"}


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as members:
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("b/link")
        link.type, link.linkname = tarfile.SYMTYPE, "large"
        members.addfile(link)
    take_apart(body.getvalue(), tmp_path / "diff", tmp_path / "notes")
    return body.getvalue()


def test_all_of_it(archive: bytes, tmp_path: Path) -> None:
    layer = LayerTar(str(tmp_path / "diff"), str(tmp_path / "notes"))
    assert b"".join(layer.chunks()) == archive
    assert layer.size == tar_size(str(tmp_path / "notes")) == len(archive)


@pytest.mark.parametrize("chunk", [1 << 20, 1000])
def test_any_part_of_it(archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(layer_tar, "CHUNK_BYTES", chunk)
    layer = LayerTar(str(tmp_path / "diff"), str(tmp_path / "notes"))
    for start in (0, 1, 511, 512, 1024, 5000, len(archive) - 1):
        for stop in (start + 1, start + 700, len(archive)):
            assert b"".join(layer.chunks(start, stop)) == archive[start:stop], (start, stop)


def test_a_file_that_is_not_as_noted_is_an_error(archive: bytes, tmp_path: Path) -> None:
    (tmp_path / "diff" / "b" / "large").write_bytes(b"short")
    with pytest.raises(LayerTarError, match="shorter than the engine noted"):
        list(LayerTar(str(tmp_path / "diff"), str(tmp_path / "notes")).chunks())
    (tmp_path / "diff" / "b" / "large").unlink()
    with pytest.raises(LayerTarError, match="cannot be read"):
        list(LayerTar(str(tmp_path / "diff"), str(tmp_path / "notes")).chunks())


def test_a_name_never_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "diff").mkdir()
    with gzip.open(tmp_path / "notes", "wt") as handle:
        handle.write(json.dumps({"type": 1, "name": "../secret", "size": 6}) + "\n")
    with pytest.raises(LayerTarError):
        list(LayerTar(str(tmp_path / "diff"), str(tmp_path / "notes")).chunks())
