# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The values that a Python file gives to its names, found without running it.

PRIVATE to this collection. It knows what tables of names are written with: literals, merged dictionaries, comprehensions.
Whatever else is met becomes a symbol or leaves a table marked as incomplete, never a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# No table of an engine comes near; it keeps a crafted file from running on.
_STEP_LIMIT = 500_000


class Unreadable(Exception):
    """The file is no Python that this host's Python understands, or it is too large to evaluate."""


@dataclass(frozen=True)
class Symbol:
    """A name or expression whose value is not known."""

    name: str = ""


UNKNOWN = Symbol()


class Table(dict[Any, Any]):
    """A dictionary. complete: false when entries may be missing."""

    complete = True


class StaticModule:
    """The names at the top level of a file. Branches of if and try all count, as either may run."""

    def __init__(self, source: str | bytes) -> None:
        self.values: dict[str, Any] = {}
        self._steps = 0
        try:
            self._run(ast.parse(source).body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Unreadable(str(error)) from error

    def table(self, name: str) -> Table | None:
        value = self.values.get(name)
        return value if isinstance(value, Table) else None

    def text(self, *names: str) -> str:
        """The first of the names that is a string."""
        return next((value for name in names if isinstance(value := self.values.get(name), str)), "")

    # statements

    def _run(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, self._value(node.value, {}))
        elif isinstance(node, ast.AnnAssign) and node.value:
            self._assign(node.target, self._value(node.value, {}))
        elif isinstance(node, ast.AugAssign):
            self._merge(node.target, self._value(node.value, {}))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._call_statement(node.value)
        elif isinstance(node, ast.If):
            self._run(node.body)
            self._run(node.orelse)
        elif isinstance(node, ast.Try):
            for body in (node.body, node.orelse, node.finalbody):
                self._run(body)
        elif isinstance(node, ast.With):
            self._run(node.body)
        elif isinstance(node, (ast.For, ast.While)):
            self._doubt_all_in(node)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._delete(target)
        elif isinstance(node, ast.ClassDef):
            self.values[node.name] = Symbol(node.name)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.values[target.id] = value
        elif isinstance(target, ast.Subscript):
            table = self._value(target.value, {})
            key = self._value(target.slice, {})
            if isinstance(table, Table):
                if isinstance(key, Symbol):
                    table.complete = False
                else:
                    table[key] = value

    def _merge(self, target: ast.expr, value: Any) -> None:
        current = self._value(target, {})
        if isinstance(current, Table):
            self._add(current, value)
        elif isinstance(target, ast.Name):
            self.values[target.id] = _joined(current, value)

    def _delete(self, target: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            table = self._value(target.value, {})
            if isinstance(table, Table):
                table.pop(self._value(target.slice, {}), None)

    def _call_statement(self, call: ast.Call) -> None:
        """X.update(Y), X.setdefault(k, v) and whatever else may change a table."""
        if not isinstance(call.func, ast.Attribute):
            return
        table = self._value(call.func.value, {})
        if not isinstance(table, Table):
            return
        if call.func.attr == "update":
            for argument in call.args:
                self._add(table, self._value(argument, {}))
            self._add(table, self._keywords(call, {}))
        elif call.func.attr == "setdefault" and len(call.args) == 2:
            table.setdefault(self._value(call.args[0], {}), self._value(call.args[1], {}))
        elif call.func.attr == "pop" and call.args:
            table.pop(self._value(call.args[0], {}), None)
        else:
            table.complete = False

    def _doubt_all_in(self, loop: ast.stmt) -> None:
        """A loop may add to any table that it names."""
        for node in ast.walk(loop):
            if isinstance(node, ast.Name) and isinstance(self.values.get(node.id), Table):
                self.values[node.id].complete = False

    # expressions

    def _value(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        self._steps += 1
        if self._steps > _STEP_LIMIT:
            raise Unreadable("it is too large to evaluate")
        method = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        return method(node, scope) if method else UNKNOWN

    def _on_constant(self, node: ast.Constant, scope: dict[str, Any]) -> Any:
        return node.value

    def _on_name(self, node: ast.Name, scope: dict[str, Any]) -> Any:
        return scope.get(node.id, self.values.get(node.id, Symbol(node.id)))

    def _on_attribute(self, node: ast.Attribute, scope: dict[str, Any]) -> Any:
        return Symbol(ast.unparse(node))

    def _on_tuple(self, node: ast.Tuple, scope: dict[str, Any]) -> Any:
        return tuple(self._items(node.elts, scope))

    def _on_list(self, node: ast.List, scope: dict[str, Any]) -> Any:
        return self._items(node.elts, scope)

    def _on_set(self, node: ast.Set, scope: dict[str, Any]) -> Any:
        return self._items(node.elts, scope)

    def _items(self, nodes: list[ast.expr], scope: dict[str, Any]) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                inner = self._value(node.value, scope)
                items.extend(inner if isinstance(inner, (list, tuple, Table)) else [UNKNOWN])
            else:
                items.append(self._value(node, scope))
        return items

    def _on_dict(self, node: ast.Dict, scope: dict[str, Any]) -> Table:
        table = Table()
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self._value(value_node, scope)
            if key_node is None:
                self._add(table, value)
                continue
            key = self._value(key_node, scope)
            if isinstance(key, Symbol):
                table.complete = False
            else:
                table[key] = value
        return table

    @staticmethod
    def _add(table: Table, value: Any) -> None:
        if isinstance(value, Table):
            table.update(value)
            table.complete = table.complete and value.complete
        elif isinstance(value, (list, tuple)) and all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in value
        ):
            for key, item in value:
                if isinstance(key, Symbol):
                    table.complete = False
                else:
                    table[key] = item
        else:
            table.complete = False

    def _keywords(self, call: ast.Call, scope: dict[str, Any]) -> Table:
        table = Table()
        for keyword in call.keywords:
            value = self._value(keyword.value, scope)
            if keyword.arg is None:
                self._add(table, value)
            else:
                table[keyword.arg] = value
        return table

    def _on_call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        function = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        if isinstance(function, ast.Attribute):
            value = self._value(function.value, scope)
            if isinstance(value, Table):
                return {
                    "items": lambda: list(value.items()),
                    "keys": lambda: list(value),
                    "values": lambda: list(value.values()),
                    "copy": lambda: self._copy(value),
                }.get(function.attr, lambda: UNKNOWN)()
            return UNKNOWN
        if isinstance(function, ast.Name) and function.id.lower().endswith("dict"):
            table = Table()
            for argument in node.args:
                self._add(table, self._value(argument, scope))
            self._add(table, self._keywords(node, scope))
            return table
        if (
            isinstance(function, ast.Name)
            and function.id in ("list", "tuple", "set", "frozenset", "sorted")
            and node.args
        ):
            value = self._value(node.args[0], scope)
            return list(value) if isinstance(value, (list, tuple, Table)) else UNKNOWN
        return UNKNOWN

    @staticmethod
    def _copy(table: Table) -> Table:
        copy = Table(table)
        copy.complete = table.complete
        return copy

    def _on_binop(self, node: ast.BinOp, scope: dict[str, Any]) -> Any:
        left, right = self._value(node.left, scope), self._value(node.right, scope)
        if isinstance(node.op, (ast.BitOr, ast.Add)):
            if isinstance(left, Table) or isinstance(right, Table):
                merged = Table()
                self._add(merged, left)
                self._add(merged, right)
                return merged
            return _joined(left, right)
        return UNKNOWN

    def _on_subscript(self, node: ast.Subscript, scope: dict[str, Any]) -> Any:
        value, key = self._value(node.value, scope), self._value(node.slice, scope)
        try:
            return value[key]
        except (TypeError, KeyError, IndexError):
            return UNKNOWN

    def _on_joinedstr(self, node: ast.JoinedStr, scope: dict[str, Any]) -> Any:
        parts = []
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            value = self._value(inner, scope)
            if not isinstance(value, (str, int)):
                return UNKNOWN
            parts.append(str(value))
        return "".join(parts)

    # comprehensions

    def _on_dictcomp(self, node: ast.DictComp, scope: dict[str, Any]) -> Table:
        table = Table()
        for inner in self._rounds(node.generators, scope):
            key = UNKNOWN if inner is None else self._value(node.key, inner)
            if inner is None or isinstance(key, Symbol):
                table.complete = False
            else:
                table[key] = self._value(node.value, inner)
        return table

    def _on_listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: dict[str, Any]) -> list[Any]:
        rounds = self._rounds(node.generators, scope)
        return [UNKNOWN if inner is None else self._value(node.elt, inner) for inner in rounds]

    _on_setcomp = _on_generatorexp = _on_listcomp

    def _rounds(self, generators: list[ast.comprehension], scope: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
        """The scope of each round; None for rounds that cannot be known."""
        if not generators:
            yield scope
            return
        first, rest = generators[0], generators[1:]
        items = self._value(first.iter, scope)
        if not isinstance(items, (list, tuple, Table)):
            yield None
            return
        if isinstance(items, Table) and not items.complete:
            yield None
        for item in items:
            inner = {**scope}
            _bind(first.target, item, inner)
            verdicts = [self._value(condition, inner) for condition in first.ifs]
            if any(isinstance(verdict, Symbol) for verdict in verdicts):
                yield None
            elif all(verdicts):
                yield from self._rounds(rest, inner)

    def _on_compare(self, node: ast.Compare, scope: dict[str, Any]) -> Any:
        if len(node.ops) != 1:
            return UNKNOWN
        left, right = self._value(node.left, scope), self._value(node.comparators[0], scope)
        if isinstance(left, Symbol) or isinstance(right, Symbol):
            return UNKNOWN
        operator = node.ops[0]
        if isinstance(operator, (ast.Eq, ast.NotEq)):
            return (left == right) == isinstance(operator, ast.Eq)
        if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(right, (str, list, tuple, Table)):
            return (left in right) == isinstance(operator, ast.In)
        return UNKNOWN

    def _on_boolop(self, node: ast.BoolOp, scope: dict[str, Any]) -> Any:
        values = [self._value(value, scope) for value in node.values]
        if any(isinstance(value, Symbol) for value in values):
            return UNKNOWN
        return all(values) if isinstance(node.op, ast.And) else any(values)

    def _on_unaryop(self, node: ast.UnaryOp, scope: dict[str, Any]) -> Any:
        value = self._value(node.operand, scope)
        return UNKNOWN if isinstance(value, Symbol) or not isinstance(node.op, ast.Not) else not value


def _joined(left: Any, right: Any) -> Any:
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return [*left, *right]
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    return UNKNOWN


def _bind(target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        scope[target.id] = value
    elif isinstance(target, (ast.Tuple, ast.List)):
        values = (
            value
            if isinstance(value, (list, tuple)) and len(value) == len(target.elts)
            else [UNKNOWN] * len(target.elts)
        )
        for element, item in zip(target.elts, values, strict=True):
            _bind(element, item, scope)
