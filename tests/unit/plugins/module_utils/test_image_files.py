# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files in the folders of layers; what goes through the engine is tested with registry_probe."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _image_files as image_files
from ansible_collections.dgxspark.serving.plugins.module_utils import _image_layers as image_layers
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_engine import FakeEngine, FakeImage

FOLDER = "/usr/lib/python3/dist-packages"
PATTERNS = ("*.dist-info/entry_points.txt", "*.pth")


class Layers:
    """Folders of layers, the uppermost first. What needs rights in a real one is told by names here."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.opaque: set[str] = set()
        monkeypatch.setattr(image_layers, "_is_removal", lambda mode: bool(mode.st_mode & stat.S_ISVTX))
        monkeypatch.setattr(image_layers, "_is_opaque", lambda path: str(path) in self.opaque)

    def place(self, layer: str, path: str) -> Path:
        return self.folder / layer / f"{FOLDER}/{path}".lstrip("/")

    def write(self, layer: str, path: str, text: str = "") -> None:
        self.place(layer, path).parent.mkdir(parents=True, exist_ok=True)
        self.place(layer, path).write_text(text)

    def remove(self, layer: str, path: str) -> None:
        self.write(layer, path)
        self.place(layer, path).chmod(0o1644)

    def search(self, *order: str) -> dict[str, bytes]:
        """What the probe finds; through the engine it would find only the marker."""
        folders = [str(self.folder / layer) for layer in order]
        data = {"UpperDir": folders[0], "LowerDir": ":".join(folders[1:])}
        driver = {"Name": "overlay2", "Data": data}
        image = FakeImage({f"{FOLDER}/through-the-engine.pth": ""}, GraphDriver=driver)
        engine: Any = FakeEngine({"img": image})
        with image_files.open_image(engine, image.inspect) as files:
            return files.search(FOLDER, PATTERNS)

    def files(self, *order: str) -> image_layers.LayeredFiles:
        return image_layers.LayeredFiles([image_layers.DiskLayer(str(self.folder / layer)) for layer in order])


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layers:
    return Layers(tmp_path, monkeypatch)


def test_names_of_all_layers_and_content_of_the_uppermost(layers: Layers) -> None:
    layers.write("upper", "a.dist-info/entry_points.txt", "new")
    layers.write("lower", "a.dist-info/entry_points.txt", "old")
    layers.write("lower", "b.dist-info/entry_points.txt", "b")
    layers.write("lower", "b.dist-info/METADATA", "not asked for")
    layers.write("lower", "deep/c.dist-info/entry_points.txt", "too deep")
    layers.write("upper", "d.pth", "/src")
    assert layers.search("upper", "lower") == {
        "a.dist-info/entry_points.txt": b"new",
        "b.dist-info/entry_points.txt": b"b",
        "d.pth": b"/src",
    }


def test_what_an_upper_layer_removes_is_gone(layers: Layers) -> None:
    layers.write("lower", "a.dist-info/entry_points.txt")
    layers.write("lower", "b.pth")
    layers.write("lower", "c.pth")
    layers.remove("upper", "a.dist-info")
    layers.remove("upper", "b.pth")
    assert layers.search("upper", "lower") == {"c.pth": b""}


def test_folder_made_anew_hides_what_is_below(layers: Layers) -> None:
    layers.write("lower", "a.dist-info/entry_points.txt")
    layers.write("upper", "a.dist-info/INSTALLER")
    assert layers.search("upper", "lower") == {"a.dist-info/entry_points.txt": b""}
    layers.opaque.add(str(layers.place("upper", "a.dist-info")))
    assert layers.search("upper", "lower") == {}


def test_parent_made_anew_hides_what_is_below(layers: Layers) -> None:
    layers.write("lower", "a.pth")
    layers.write("middle", "b.pth")
    layers.write("upper", "c.pth")
    layers.opaque.add(str(layers.folder / "middle/usr/lib"))
    assert layers.search("upper", "middle", "lower") == {"b.pth": b"", "c.pth": b""}


def test_links_are_followed_within_the_image_and_never_on_this_host(layers: Layers, tmp_path: Path) -> None:
    (tmp_path / "secret.pth").write_text("secret of the host")
    layers.write("upper", "a.pth", "a")
    os.symlink(tmp_path / "secret.pth", layers.place("upper", "b.pth"))
    os.symlink("../../../../../../../../../../a.pth", layers.place("upper", "c.pth"))
    os.symlink("a.pth", layers.place("upper", "d.pth"))
    os.symlink("/usr/lib", layers.folder / "upper/lib")
    assert layers.search("upper") == {"a.pth": b"a", "d.pth": b"a"}
    assert layers.files("upper").read("/lib/python3/dist-packages/../dist-packages/a.pth") == b"a"
    assert layers.files("upper").read("/etc/hostname") is None


def test_loops_of_links_end(layers: Layers) -> None:
    layers.write("upper", "a.pth", "a")
    os.symlink("y", layers.place("upper", "x"))
    os.symlink("x", layers.place("upper", "y"))
    os.symlink(".", layers.place("upper", "here"))
    files = layers.files("upper")
    assert files.read(f"{FOLDER}/x") is None
    assert files.read(f"{FOLDER}/x/{'x/' * 100}a.pth") is None
    assert files.read(f"{FOLDER}/here/here/here/a.pth") == b"a"


def test_link_to_what_a_lower_layer_has(layers: Layers) -> None:
    layers.write("lower", "real/a.pth", "a")
    layers.write("upper", "z.pth")
    os.symlink(f"{FOLDER}/real", layers.place("upper", "linked"))
    files = layers.files("upper", "lower")
    assert files.read(f"{FOLDER}/linked/a.pth") == b"a"
    info = files.info(f"{FOLDER}/linked")
    assert info and (info.target, info.is_link, info.is_folder) == (f"{FOLDER}/real", True, False)


def test_file_in_the_place_of_a_folder_hides_what_is_below(layers: Layers) -> None:
    layers.write("lower", "a.dist-info/entry_points.txt")
    layers.write("upper", "a.dist-info", "a file")
    assert layers.search("upper", "lower") == {}


def test_device_pipe_and_huge_file_are_not_read(layers: Layers) -> None:
    layers.write("upper", "a.pth", "a")
    os.mkfifo(layers.place("upper", "pipe.pth"))
    with open(layers.place("upper", "huge.pth"), "wb") as handle:
        handle.truncate(10 * 1024**3)
    assert layers.search("upper") == {"a.pth": b"a"}


def test_layers_that_cannot_be_read_are_left_to_the_engine(layers: Layers) -> None:
    layers.write("upper", "a.pth")
    assert layers.search("upper", "not-on-this-host") == {"through-the-engine.pth": b""}


def test_whiteouts_and_opaque_folders_as_overlayfs_marks_them(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "removed", stat.S_IFCHR | 0o644, os.makedev(0, 0))
        os.setxattr(tmp_path, "trusted.overlay.opaque", b"y")
    except OSError as error:
        pytest.skip(f"needs rights to make device nodes and trusted attributes: {error}")
    (tmp_path / "kept").touch()
    assert image_layers._is_removal(os.lstat(tmp_path / "removed"))
    assert not image_layers._is_removal(os.lstat(tmp_path / "kept"))
    assert image_layers._is_opaque(str(tmp_path))
    os.setxattr(tmp_path, "trusted.overlay.opaque", b"n")
    assert not image_layers._is_opaque(str(tmp_path))
    os.setxattr(tmp_path, "trusted.overlay.redirect", b"/elsewhere")
    with pytest.raises(image_layers.Redirected):
        image_layers.DiskLayer(str(tmp_path.parent)).entry(f"/{tmp_path.name}")


def test_search_in_an_archive_ends_when_nothing_more_can_come() -> None:
    read = []
    image = FakeImage(
        {f"{FOLDER}/{name}": name for name in ("Cython/a.pth", "__editable__.x.pth", "numpy/b.pth", "z.pth")}
    )
    engine: Any = FakeEngine({"img": image})
    with image_files.ImageFiles(engine, image.inspect["Id"]) as files:
        archive = files._archive

        def watched(folder: str) -> Any:
            for member in archive(folder):
                read.append(member.name.partition("/")[2])
                yield member

        files._archive = watched  # type: ignore[method-assign]  # to see how far it reads
        assert files.search(FOLDER, ("*.pth",), until="__editable__~") == {"__editable__.x.pth": b"__editable__.x.pth"}
    assert read == ["Cython/a.pth", "__editable__.x.pth", "numpy/b.pth"]
