# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine's own source says, found by running it. Nothing of the collection is used here.

python truth.py vllm REGISTRY_FILE
python truth.py sglang MODELS_FOLDER
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import types
from typing import Any


def of_vllm(path: str) -> dict[str, Any]:
    """The tables of registry.py, each executed by itself."""
    with open(path, encoding="utf-8") as handle:
        tree = ast.parse(handle.read())
    names: dict[str, Any] = {}
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            if isinstance(statement, ast.AnnAssign):
                statement.annotation = ast.Constant("")
            code = compile(ast.fix_missing_locations(ast.Module([statement], [])), path, "exec")
            # What needs an import of vLLM or torch is no table of names.
            with contextlib.suppress(Exception):
                exec(code, names)
    served = {
        key
        for name, table in names.items()
        if isinstance(table, dict)
        and name.endswith("_MODELS")
        and name
        not in ("_VLLM_MODELS", "_SPECULATIVE_DECODING_MODELS", "_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS")
        for key in table
    }
    return {
        "all": sorted(names["_VLLM_MODELS"]),
        "drafts": sorted(set(names.get("_SPECULATIVE_DECODING_MODELS", ())) - served),
        "removed": names.get("_PREVIOUSLY_SUPPORTED_MODELS", {}),
    }


class _Any(type):
    """A class that has every attribute, takes every call and can stand wherever a class or a decorator can."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if cls.__dict__.get("_stand_in"):
            plain = len(arguments) == 1 and callable(arguments[0]) and not isinstance(arguments[0], _Any)
            return arguments[0] if plain else _stand_in("result")
        return super().__call__(*arguments, **options)

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = __or__

    def __iter__(cls) -> Any:
        return iter(())

    def __bool__(cls) -> bool:
        return False

    def __lt__(cls, other: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *_error: object) -> None:
        return None


def _stand_in(name: str) -> Any:
    return _Any(name, (), {"_stand_in": True, "__init_subclass__": classmethod(lambda cls, **options: None)})


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _stand_in(name)


class _Everything(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module that Python does not bring."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        module.__getattr__ = _attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: Any) -> None:
        return None


def of_sglang(folder: str) -> dict[str, Any]:
    """EntryClass of each module, executed with stand-ins for all that it imports."""
    sys.meta_path.insert(0, _Everything())
    exported, failed = {}, {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".py"):
            continue
        namespace: dict[str, Any] = {"__name__": f"sglang.srt.models.{name[:-3]}", "__package__": "sglang.srt.models"}
        try:
            with (
                open(os.path.join(folder, name), encoding="utf-8-sig") as handle,
                contextlib.redirect_stdout(io.StringIO()),
            ):
                exec(compile(handle.read(), name, "exec", dont_inherit=True), namespace)
            entry = namespace.get("EntryClass", [])
            exported[name] = [item.__name__ for item in (entry if isinstance(entry, (list, tuple)) else [entry])]
        except BaseException as error:
            failed[name] = repr(error)[:200]
    return {"exported": exported, "failed": failed}


if __name__ == "__main__":
    print(json.dumps({"vllm": of_vllm, "sglang": of_sglang}[sys.argv[1]](sys.argv[2])))
