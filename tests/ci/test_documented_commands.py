"""Every command in the documentation names what exists: targets, parts, playbooks, inventories, variables, modules with their options,
scenarios, units. And each playbook is run by a test on the lab.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
COLLECTION = "dgxspark.serving."
DOCUMENTS = sorted(
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "roles/*/README.md")
    for path in CHECKOUT.glob(pattern)
)
# Words that stand for what a reader has.
OF_THE_READER = {"my_inventory", "my_model.yml"}


def commands() -> Iterator[tuple[str, str]]:
    """(document, command): lines of fenced blocks that are no other language, and what stands between backticks."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            if language in ("", "console", "sh", "bash", "shell"):
                for line in block.replace("\\\n", " ").splitlines():
                    yield path.name, line.strip()
        for span in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
            yield path.name, span.strip()


def words(program: str) -> list[list[str]]:
    """The arguments of each documented call of a program, without what a reader has to put in."""
    found = {command for _document, command in commands() if command.split(" ")[0] == program and "…" not in command}
    return [shlex.split(command, comments=True)[1:] for command in sorted(found)]


def named(values: list[list[str]]) -> list[str]:
    return [" ".join(value) for value in values]


def source(*patterns: str) -> str:
    paths = sorted(path for pattern in patterns for path in CHECKOUT.glob(pattern))
    assert paths, patterns
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def test_there_are_commands() -> None:
    """Were the documents written in another way, nothing below would be looked at."""
    for program in ("make", "ansible-playbook", "ansible", "molecule", "journalctl"):
        assert words(program), program


@pytest.mark.parametrize("arguments", words("make"), ids=named(words("make")))
def test_a_target_of_make(arguments: list[str]) -> None:
    target, *variables = arguments
    assert re.search(rf"^{re.escape(target)}:", source("Makefile"), re.MULTILINE)
    for variable in variables:
        name, value = variable.split("=")
        assert f"$({name})" in source("Makefile") or f"if $({name})" in source("Makefile")
        if name == "PART":
            assert re.search(rf"^    {value}\)|\"\$part\" = {value} ", source("tests/ci/run.sh"), re.MULTILINE)


@pytest.mark.parametrize("arguments", words("ansible-playbook"), ids=named(words("ansible-playbook")))
def test_a_playbook_with_its_inventory_and_variables(arguments: list[str]) -> None:
    playbook, known = arguments[0], source("roles/*/defaults/*.yml", "playbooks/*.yml", "playbooks/tasks/*.yml")
    if playbook.startswith(COLLECTION):
        playbook = f"playbooks/{playbook.removeprefix(COLLECTION)}.yml"
    assert (CHECKOUT / playbook).is_file()
    for option, value in itertools.pairwise(arguments):
        if option == "-i" and value not in OF_THE_READER:
            assert (CHECKOUT / value).exists()
        if option == "-e":
            given = json.loads(value) if value.startswith("{") else [value.split("=")[0]]
            assert all(re.search(rf"\b{name}\b", known) for name in given), value


@pytest.mark.parametrize("arguments", words("ansible"), ids=named(words("ansible")))
def test_a_module_with_its_options(arguments: list[str]) -> None:
    module = arguments[arguments.index("-m") + 1].removeprefix(COLLECTION)
    if module == "ping":
        return
    text = source(f"plugins/modules/{module}.py", "plugins/doc_fragments/*.py")
    for option in re.findall(r"(\w+)=", arguments[arguments.index("-a") + 1] if "-a" in arguments else ""):
        assert re.search(rf"^  {option}:$", text, re.MULTILINE), option


@pytest.mark.parametrize("arguments", words("molecule"), ids=named(words("molecule")))
def test_a_scenario(arguments: list[str]) -> None:
    scenario = arguments[arguments.index("-s") + 1] if "-s" in arguments else "default"
    assert (CHECKOUT / "molecule" / scenario / "molecule.yml").is_file()


def test_units() -> None:
    known = source("roles/*/t*/*", "plugins/module_utils/*.py")
    for program in ("systemctl", "journalctl"):
        for arguments in words(program):
            for unit in re.findall(r"dgxspark-[a-z-]+", " ".join(arguments)):
                assert unit in known, unit


@pytest.mark.parametrize("playbook", sorted(path.stem for path in (CHECKOUT / "playbooks").glob("*.yml")))
def test_a_playbook_is_run_on_the_lab_by_a_test(playbook: str) -> None:
    # The walk runs what its document says.
    assert f"{playbook}.yml" in source("tests/e2e/*.py", "docs/walk.md")
