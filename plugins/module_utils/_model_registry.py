# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which architectures, parsers and configurations an engine knows, read from its source files.

PRIVATE to this collection. Functions of text only.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ansible_collections.dgxspark.serving.plugins.module_utils._static_python import (
    StaticModule,
    Symbol,
    Table,
    Unreadable,
)

MODEL, DRAFT, REMOVED, PLUGIN = "model", "draft", "removed", "plugin"

# Tables of vllm/model_executor/models/registry.py with a meaning of their own. _MODELS: the name before 0.6.
_ALL_MODELS = ("_VLLM_MODELS", "_MODELS")
_DRAFT_TABLES = ("_SPECULATIVE_DECODING_MODELS",)
_REMOVED_TABLE = "_PREVIOUSLY_SUPPORTED_MODELS"
_PLUGIN_TABLE = "_OOT_SUPPORTED_MODELS"
# SGLang has one table for all; its drafts are told by their names.
_SGLANG_DRAFT = re.compile(r"(?:NextN|MTP|Eagle\d?|EAGLE\d?|Medusa|DFlash)$")
# Classes that run any model that transformers knows: no answer to "which is closest".
_GENERIC = re.compile(r"^Transformers")
# How alike two names must be to be called close (difflib's own default).
_CLOSE = 0.6


@dataclass(frozen=True)
class Registry:
    """kinds: model, draft, removed or plugin by architecture; notes: the last version or the plugin; complete: all was read."""

    kinds: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    complete: bool = True

    def kind(self, architecture: str) -> str:
        return self.kinds.get(architecture, "")

    def closest(self, architecture: str) -> str:
        """The served model with the name most alike; empty when none is."""
        models = [name for name, kind in self.kinds.items() if kind == MODEL and not _GENERIC.match(name)]
        return next(iter(difflib.get_close_matches(architecture, models, n=1, cutoff=_CLOSE)), "")


def read_vllm_registry(source: bytes | str) -> Registry:
    """Raises Unreadable."""
    module = StaticModule(source)
    models = next((table for name in _ALL_MODELS if (table := module.table(name)) is not None), None)
    if models is None:
        raise Unreadable(f"it has none of the tables {', '.join(_ALL_MODELS)}")
    drafts: set[str] = set()
    served: set[str] = set()
    for name, table in module.values.items():
        if not isinstance(table, Table) or name in (*_ALL_MODELS, _REMOVED_TABLE, _PLUGIN_TABLE):
            continue
        (drafts if name in _DRAFT_TABLES else served).update(key for key in table if isinstance(key, str))
    kinds, notes = {}, {}
    for name, kind in ((_REMOVED_TABLE, REMOVED), (_PLUGIN_TABLE, PLUGIN)):
        for architecture, note in (module.table(name) or Table()).items():
            kinds[architecture] = kind
            notes[architecture] = note if isinstance(note, str) else ""
    for architecture in models:
        kinds[architecture] = DRAFT if architecture in drafts - served else MODEL
        notes.pop(architecture, None)
    return Registry(kinds, notes, models.complete)


def read_sglang_registry(modules: Mapping[str, bytes | str]) -> Registry:
    """modules: the files of sglang/srt/models by name. Only what a file exports as EntryClass counts."""
    kinds, complete = {}, True
    for _name, source in sorted(modules.items()):
        try:
            exported = StaticModule(source).values.get("EntryClass", [])
        except Unreadable:
            complete = False
            continue
        for item in exported if isinstance(exported, (list, tuple)) else [exported]:
            if isinstance(item, Symbol) and item.name:
                kinds[item.name] = DRAFT if _SGLANG_DRAFT.search(item.name) else MODEL
            else:
                complete = False
    return Registry(kinds, {}, complete)


_REGISTER_CALLS = ("register_module", "register_lazy_module", "register")


def read_parser_names(modules: Iterable[bytes | str], manager: str) -> set[str]:
    """The names under which parsers are registered.

    Older versions of vLLM decorate each class with C(@ReasoningParserManager.register_module("qwen3")), newer ones keep a
    table C(_REASONING_PARSERS_TO_REGISTER). manager: ReasoningParserManager or ToolParserManager.
    """
    names: set[str] = set()
    for source in modules:
        try:
            tree = ast.parse(source)
            tables = StaticModule(source).values
        except (SyntaxError, ValueError, RecursionError, Unreadable):
            continue
        for name, table in tables.items():
            if name.endswith("_PARSERS_TO_REGISTER") and isinstance(table, Table):
                names.update(key for key in table if isinstance(key, str))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_call_of(node.func, manager):
                names.update(_names_in(node))
    return names


def _is_call_of(function: ast.expr, manager: str) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in _REGISTER_CALLS
        and isinstance(function.value, ast.Name)
        and function.value.id == manager
    )


def _names_in(call: ast.Call) -> list[str]:
    """The name or names: the first argument, or the one called name."""
    values = [keyword.value for keyword in call.keywords if keyword.arg == "name"] or call.args[:1]
    found = []
    for value in values:
        for item in value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]:
            if isinstance(item, ast.Constant) and isinstance(item.value, str):
                found.append(item.value)
    return found


def read_sglang_parser_names(source: bytes | str) -> set[str]:
    """The keys of the tables inside the parser classes of SGLang (DetectorMap, ToolCallParserEnum)."""
    names: set[str] = set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return names
    for node in ast.walk(tree):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        value = node.value if isinstance(node, (ast.AnnAssign, ast.Assign)) else None
        if (
            isinstance(target, ast.Name)
            and target.id in ("DetectorMap", "ToolCallParserEnum")
            and isinstance(value, ast.Dict)
        ):
            names.update(
                key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
            )
    return names


def read_class_model_types(modules: Iterable[bytes | str]) -> set[str]:
    """The values of C(model_type) of all classes in the modules."""
    types: set[str] = set()
    for source in modules:
        text = source.decode(errors="replace") if isinstance(source, bytes) else source
        types.update(re.findall(r"""^\s+model_type\s*(?::\s*\w+\s*)?=\s*["']([^"']+)["']""", text, re.M))
    return types


def read_config_types(source: bytes | str | None, name: str) -> tuple[set[str], bool]:
    """(model types in the table of a file, whether these are all)."""
    if source is None:
        return set(), False
    try:
        table = StaticModule(source).table(name)
    except Unreadable:
        return set(), False
    if table is None:
        return set(), False
    return {key for key in table if isinstance(key, str)}, table.complete
