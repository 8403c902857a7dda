"""What is shipped, installed into an empty folder and used from another one that holds an inventory and a file of variables.

make test-full PART=packaging. Needs the lab to be up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import CHECKOUT, INVENTORY, answers, lab

# What a user needs, and what Galaxy makes of it.
SHIPPED = {
    *("CHANGELOG.md", "CONTRIBUTING.md", "COPYING", "FILES.json", "MANIFEST.json", "README.md"),
    *("changelogs", "docs", "inventories", "meta", "playbooks", "plugins", "roles", "tests"),
}
GALAXY = str(Path(sys.executable).parent / "ansible-galaxy")


def command(*words: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        words,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}, **environment},
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    command(GALAXY, "collection", "build", "--output-path", str(folder), cwd=CHECKOUT)
    (found,) = folder.glob("dgxspark-serving-*.tar.gz")
    return found


@pytest.fixture(scope="module")
def collections(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder after the collection and its dependencies were installed there. It has none, so nothing is asked for."""
    folder = tmp_path_factory.mktemp("collections")
    command(GALAXY, "collection", "install", "--offline", "-p", str(folder), str(archive), cwd=folder)
    return folder


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """An inventory and a file of variables: what the lab's inventory says, without a path into the checkout but the way to SSH."""
    variables: dict[str, Any] = yaml.safe_load((CHECKOUT / INVENTORY / "group_vars" / "spark.yml").read_text())
    preset = yaml.safe_load((CHECKOUT / "tests" / "lab" / "presets" / "qwen35_tiny.yml").read_text())
    variables["ansible_ssh_common_args"] = f"-F {CHECKOUT}/.lab/ssh_config -o ControlMaster=auto -o ControlPersist=60s"
    variables["spark_preset"] = preset.pop("extends")
    variables["spark_candidates"] = preset.pop("candidates")
    variables["spark_preset_overrides"] = preset
    (tmp_path / "hosts.yml").write_text((CHECKOUT / INVENTORY / "hosts.yml").read_text())
    (tmp_path / "vars.yml").write_text(yaml.safe_dump(variables))
    return tmp_path


def test_the_archive_holds_what_a_user_needs_and_nothing_else(archive: Path) -> None:
    with tarfile.open(archive) as content:
        names = content.getnames()
    assert {name.split("/")[0] for name in names} == SHIPPED
    assert {"/".join(name.split("/")[:2]) for name in names if name.startswith("tests/")} == {
        *("tests/config.yml", "tests/unit"),
    }
    assert not [name for name in names if "lab" in Path(name).parts or name.endswith((".pyc", ".tar.gz"))]


def test_the_modules_are_documented_where_they_are_installed(collections: Path, tmp_path: Path) -> None:
    listed = json.loads(
        command(
            "ansible-doc",
            "--list",
            "--json",
            "dgxspark.serving",
            cwd=tmp_path,
            ANSIBLE_COLLECTIONS_PATH=str(collections),
        )
    )
    modules = {path.stem for path in (CHECKOUT / "plugins" / "modules").glob("*.py")}
    assert {name.rpartition(".")[2] for name in listed} == modules
    assert all(listed.values())


def test_module_defaults_reach_the_action_group(collections: Path, tmp_path: Path) -> None:
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "module_defaults": {"group/dgxspark.serving.spark": {"fail_on": []}},
        # More than any machine has: an error, which does not fail with the group's default.
        "tasks": [{"dgxspark.serving.gpu_memory_check": {"required_gib": 1000000}, "register": "found"}],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    said = command(
        *(
            "ansible-playbook",
            "-i",
            "localhost,",
            "-c",
            "local",
            "-e",
            f"ansible_python_interpreter={sys.executable}",
            "play.yml",
        ),
        cwd=tmp_path,
        ANSIBLE_COLLECTIONS_PATH=str(collections),
    )
    assert "failed=0" in said and "ok=1" in said


def test_the_playbook_runs_by_its_full_name(collections: Path, users_folder: Path) -> None:
    lab("reset")
    said = command(
        *("ansible-playbook", "dgxspark.serving.deploy_qwen35", "-i", "hosts.yml", "-e", "@vars.yml"),
        cwd=users_folder,
        ANSIBLE_COLLECTIONS_PATH=str(collections),
    )
    assert "answer        2 + 2 = 4." in said
    assert sorted(path.name for path in users_folder.iterdir()) == ["hosts.yml", "vars.yml"]
    assert answers()
