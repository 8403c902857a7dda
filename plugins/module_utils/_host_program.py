# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Programs that must work on a host when no control node is there: one file each, made of the modules that they import.

PRIVATE to this collection. A program is a module of this folder with C(main(argv) -> int) that imports only the standard
library and modules of this folder. The module that installs it must import it, so that Ansible ships its source to the host.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import os
import sys
import zipfile
from types import ModuleType
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._files import write_file

PROGRAM_FOLDER = "/opt/dgxspark/lib"
_PACKAGE = "ansible_collections.dgxspark.serving.plugins.module_utils"
# Equal sources give equal bytes: a zip entry has no older time than this one.
_EPOCH = (1980, 1, 1, 0, 0, 0)


class ProgramError(Exception):
    """The source of a program is not at hand; the message says which part."""


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    loader = spec.loader if spec else None
    source: Any = loader.get_source(module) if loader and hasattr(loader, "get_source") else None
    if source is None:
        raise ProgramError(f"The source of {module} is not at hand: the calling module does not import it.")
    # Ansible's own loader of collections returns bytes.
    return source.decode("utf-8") if isinstance(source, bytes) else str(source)


def _imports(source: str) -> set[str]:
    """Full names of the modules of this folder that a source imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_PACKAGE):
            if node.module == _PACKAGE:
                found |= {f"{_PACKAGE}.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


def program(main: ModuleType) -> bytes:
    """The program as one file that C(python3 FILE) runs. Equal for equal sources.

    Raises ProgramError when a source is missing.
    """
    sources: dict[str, str] = {}
    wanted = [main.__name__]
    while wanted:
        name = wanted.pop()
        if name not in sources:
            sources[name] = _source(name)
            wanted += sorted(_imports(sources[name]))
    parts = _PACKAGE.split(".")
    packages = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    files = {f"{folder}/__init__.py": "" for folder in packages}
    files |= {f"{name.replace('.', '/')}.py": text for name, text in sources.items()}
    files["__main__.py"] = f"import sys\n\nfrom {main.__name__} import main\n\nsys.exit(main(sys.argv[1:]))\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(files):
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), files[path])
    return buffer.getvalue()


def program_path(name: str) -> str:
    return f"{PROGRAM_FOLDER}/{name}.pyz"


def program_command(name: str) -> list[str]:
    """How a unit runs the program: isolated (-I), so that nothing in the environment changes what it imports."""
    return [sys.executable or "/usr/bin/python3", "-I", program_path(name)]


def is_installed(name: str, main: ModuleType) -> bool:
    """Whether the host has exactly this program."""
    try:
        with open(program_path(name), "rb") as handle:
            return handle.read() == program(main)
    except OSError:
        return False


def install_program(name: str, main: ModuleType) -> bool:
    """Write the program unless the host has exactly this one. Returns whether it was written."""
    if is_installed(name, main):
        return False
    os.makedirs(PROGRAM_FOLDER, mode=0o755, exist_ok=True)
    write_file(program_path(name), program(main), 0o644)
    return True
