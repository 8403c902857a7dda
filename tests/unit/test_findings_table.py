"""Every id of a finding in the code stands in the table, and the table has no other."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).parents[2]
SEVERITIES = {"error", "warning", "info"}
# Names of settings and files that look like an id.
_AREA = re.compile(r"[A-Z]{4,}\.[A-Z][A-Z0-9_]*")


def findings_page() -> ModuleType:
    # The artefact has no tests/ci.
    path = CHECKOUT / "tests" / "ci" / "findings_page.py"
    if not path.exists():
        pytest.skip("only in a checkout")
    spec = importlib.util.spec_from_file_location("findings_page", path)
    if spec is None or spec.loader is None:
        pytest.fail(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def patterns_of(source: str) -> set[str]:
    """Regular expressions of the ids that a source file makes: texts as they are, and f-strings with gaps."""
    tree = ast.parse(source)
    parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            if _AREA.fullmatch(node.value):
                found.add(re.escape(node.value))
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
            if _AREA.fullmatch(text.replace("{}", "X")) and "{}" in text:
                found.add(re.escape(text).replace(r"\{\}", "[A-Z0-9_]+"))
    return found


def code_patterns() -> set[str]:
    sources = (CHECKOUT / "plugins").rglob("*.py")
    return {pattern for path in sources for pattern in patterns_of(path.read_text(encoding="utf-8"))}


def test_patterns_are_found_in_texts_and_f_strings() -> None:
    source = 'a = Finding("HOST.ONE", 1)\nb = Finding(f"HOST.{kind}_TWO", 1)\nc = f"see HOST.NOT_ONE"\n'
    assert patterns_of(source) == {r"HOST\.ONE", r"HOST\.[A-Z0-9_]+_TWO"}


def test_each_id_of_the_code_is_in_the_table() -> None:
    table = findings_page().load_tables()
    missing = {pattern for pattern in code_patterns() if not any(re.fullmatch(pattern, identity) for identity in table)}
    assert missing == set()


def test_each_id_of_the_table_is_in_the_code() -> None:
    patterns = code_patterns()
    unused = {
        identity
        for identity in findings_page().load_tables()
        if not any(re.fullmatch(pattern, identity) for pattern in patterns)
    }
    assert unused == set()


def test_entries_are_complete() -> None:
    for identity, entry in findings_page().load_tables().items():
        assert set(entry) == {"severity", "meaning", "remedy"}, identity
        assert entry["severity"] and set(entry["severity"]) <= SEVERITIES, identity
        assert entry["meaning"].endswith(".") and entry["remedy"].endswith("."), identity
        assert identity.split(".")[0] in findings_page().AREAS, identity


def test_the_page_is_made_of_the_table() -> None:
    made = findings_page()
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "run tests/ci/findings_page.py --write"
