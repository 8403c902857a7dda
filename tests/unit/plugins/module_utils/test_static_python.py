# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _static_python as static_python

BASE = 'A = {"a": ("m", "A"), "b": ("n", "B")}\nB: dict[str, str] = {"c": ("o", "C")}\n'


@pytest.mark.parametrize(
    "code, keys",
    [
        ("X = {**A, **B}", ["a", "b", "c"]),
        ("X = A | B", ["a", "b", "c"]),
        ("X = dict(A)\nX.update(B)", ["a", "b", "c"]),
        ("X = dict(A, d=1)", ["a", "b", "d"]),
        ("X = A.copy()\nX |= B", ["a", "b", "c"]),
        ("X = {}\nX['d'] = 1\ndel X['nothing']", ["d"]),
        ("X = {**A}\ndel X['a']", ["b"]),
        ("X = {**A}\nX.pop('a')", ["b"]),
        ("X = {k: v for k, v in A.items()}", ["a", "b"]),
        ("X = {k: (m, c) for k, (m, c) in A.items() if c == 'B'}", ["b"]),
        ("X = {k: 1 for k in A if k not in ('a',)}", ["b"]),
        ("X = {k: 1 for d in (A, B) for k in d}", ["a", "b", "c"]),
        ("X = {f'{k}_draft': v for k, v in B.items()}", ["c_draft"]),
        ("X = OrderedDict([('d', 1), ('e', 2)])", ["d", "e"]),
        ("X = OrderedDict[str, str]([('d', 1)])", ["d"]),
        ("X = LazyConfigDict(d='D', e='E')", ["d", "e"]),
        ("if cuda():\n    X = {**A}\nelse:\n    A.clear()", ["a", "b"]),
        ("try:\n    X = {**B}\nexcept ImportError:\n    pass", ["c"]),
        ("X = {'d' + 'e': 1}", ["de"]),
        ("X = {k: 1 for k, v in [('d', 1), ('e', 2)]}", ["d", "e"]),
        ("X = {'d': unknown(), 'e': some.thing}", ["d", "e"]),
    ],
)
def test_tables(code: str, keys: list[str]) -> None:
    table = static_python.StaticModule(BASE + code).table("X")
    assert table is not None
    assert sorted(table) == keys
    assert table.complete


@pytest.mark.parametrize(
    "code",
    [
        "X = {**A, **load()}",
        "X = A | load()",
        "X = dict(A)\nX.update(load())",
        "X = {**A, name(): 1}",
        "X = {k: 1 for k in load()}",
        "X = {k: 1 for k, v in ['no pair']}",
        "X = {'d' + name: 1}",
        "X = {k: 1 for k in A if check(k)}",
        "X = {**A}\nfor n in names():\n    X[n] = 1",
        "X = {**A}\nX.clear()",
        "Y = {**load()}\nX = {**A, **Y}",
        "Y = {**load()}\nX = {k: 1 for k in Y}",
    ],
)
def test_what_cannot_be_known_leaves_the_table_incomplete(code: str) -> None:
    table = static_python.StaticModule(BASE + code).table("X")
    assert table is not None
    assert not table.complete


def test_classes_and_unknown_names_are_symbols() -> None:
    module = static_python.StaticModule("class A: ...\nEntryClass = [A, imported]\n")
    assert module.values["EntryClass"] == [static_python.Symbol("A"), static_python.Symbol("imported")]


def test_text_takes_the_first_string() -> None:
    module = static_python.StaticModule("__version__ = version = '1.2'\ncuda: str | None = None\n")
    assert module.text("missing", "cuda", "version") == "1.2"
    assert module.text("cuda") == ""


@pytest.mark.parametrize("source", ["def (", "\0", "(" * 10_000])
def test_unreadable(source: str) -> None:
    with pytest.raises(static_python.Unreadable):
        static_python.StaticModule(source)


def test_crafted_file_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_python, "_STEP_LIMIT", 1000)
    source = f"L = [{'1,' * 20}]\nX = {{(a, b, c): 1 for a in L for b in L for c in L}}"
    with pytest.raises(static_python.Unreadable, match="too large"):
        static_python.StaticModule(source)
