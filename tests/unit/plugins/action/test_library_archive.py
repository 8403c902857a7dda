"""The libraries that the hosts get are complete: they import from the archive alone, on any architecture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.dgxspark.serving.plugins.action.library_archive import package_files, with_dependencies

DISTRIBUTIONS = ("docker", "requests", "urllib3", "idna", "certifi", "charset-normalizer")


def test_the_copied_files_import_without_the_control_node_s(tmp_path: Path) -> None:
    for name in DISTRIBUTIONS:
        for relative, path in package_files(name):
            target = tmp_path / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert not list(tmp_path.rglob("*.so"))
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import docker, requests",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_package_says_what_to_install() -> None:
    with pytest.raises(AnsibleActionFail, match="pip install docker requests"):
        package_files("no-such-distribution")


def test_no_path_leaves_the_folder() -> None:
    for name in DISTRIBUTIONS:
        for relative, _path in package_files(name):
            assert not relative.startswith("/")
            assert ".." not in Path(relative).parts


def test_what_a_package_needs_comes_along() -> None:
    found = with_dependencies(["requests"])
    assert {"requests", "urllib3", "idna", "certifi"} <= set(found)
    assert with_dependencies(["not-installed-anywhere"]) == ["not-installed-anywhere"]
