# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Python of an image: its interpreter, where it looks for packages, and what it finds there.

PRIVATE to this collection. It follows what the interpreter itself does (the site module, venv, .pth files, editable
installs), because an image often has more folders of an engine's name than the one that Python imports.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ansible_collections.dgxspark.serving.plugins.module_utils._image_files import Files
from ansible_collections.dgxspark.serving.plugins.module_utils._static_python import StaticModule, Table, Unreadable

# Where images keep an environment that is not on their PATH, seen in published images.
_FURTHER_BIN_FOLDERS = (
    "/opt/venv/bin",
    "/app/.venv/bin",
    "/opt/vllm/bin",
    "/workspace/.venv/bin",
    "/root/.venv/bin",
    "/opt/conda/bin",
    "/usr/local/bin",
    "/usr/bin",
)
# The PATH of a container whose image sets none (moby, oci/defaults.go).
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PYTHON_NAME = re.compile(r"python(\d+\.\d+)$")
# pip and uv write a long interpreter path as: #!/bin/sh, then '''exec' /path/to/python "$0" "$@"
_EXEC_LINE = re.compile(r"""^'''exec' "?(/[^"\n]+?)"? "\$0" "\$@\"""", re.M)
# Names that setuptools gives to editable installs sort before all lower-case names, so a search can end there.
_EDITABLE_PATTERNS = ("__editable__*.pth", "__editable__*.py")
_EDITABLE_END = "__editable__~"
_KNOWN_PTH = ("easy-install.pth", "vllm.pth", "_vllm.pth", "sglang.pth", "_sglang.pth")
_DISTRIBUTION = re.compile(r"([A-Za-z0-9._-]+?)-([^-/]+)\.dist-info/")


def parse_environment(variables: list[str] | None) -> dict[str, str]:
    return dict(variable.split("=", 1) for variable in variables or [] if "=" in variable)


@dataclass(frozen=True)
class ImagePython:
    """version: 3.12.3, or 3.12 when no more is known; folders: where it looks for packages, in its order."""

    interpreter: str
    version: str
    folders: tuple[str, ...]

    @property
    def series(self) -> str:
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True)
class Package:
    """A package as Python would import it. path: its folder; editable: imported from a source tree."""

    name: str
    path: str
    editable: bool = False


class PythonFinder:
    """Finds the interpreter and packages of an image."""

    def __init__(self, files: Files, environment: dict[str, str], entrypoint: list[str]) -> None:
        self.files = files
        self.environment = environment
        self.entrypoint = entrypoint
        path = environment.get("PATH") or _DEFAULT_PATH
        self._debian: dict[str, str] | None = None
        self.path_folders = [folder.rstrip("/") for folder in path.split(":") if folder.startswith("/")]

    def pythons(self, command: str) -> Iterator[ImagePython]:
        """The interpreters that may run the engine: first that of its command, last the plain python3; each once."""
        seen = set()
        for interpreter in self._interpreters(command):
            if interpreter in seen:
                continue
            seen.add(interpreter)
            python = self._python(interpreter)
            if python:
                yield python

    def _interpreters(self, command: str) -> Iterator[str]:
        folders = list(dict.fromkeys([*self.path_folders, *_FURTHER_BIN_FOLDERS]))
        for folder in folders:
            script = self.files.read(f"{folder}/{command}") if self.files.info(f"{folder}/{command}") else None
            interpreter = self._interpreter_of(script) if script else ""
            if interpreter:
                yield interpreter
        if self.entrypoint and re.fullmatch(r"/.*/python[\d.]*", self.entrypoint[0]):
            yield self.entrypoint[0]
        for name in ("python3", "python"):
            found = self._which(name)
            if found:
                yield found
        for folder in _FURTHER_BIN_FOLDERS:
            if self.files.info(f"{folder}/python3"):
                yield f"{folder}/python3"

    def _which(self, name: str) -> str:
        return next((f"{folder}/{name}" for folder in self.path_folders if self.files.info(f"{folder}/{name}")), "")

    def _interpreter_of(self, script: bytes) -> str:
        text = script[:4096].decode(errors="replace")
        first = text.splitlines()[0] if text.startswith("#!") else ""
        words = first[2:].split()
        if not words:
            return ""
        if posixpath.basename(words[0]) == "env" and len(words) > 1:
            return self._which(words[-1])
        if posixpath.basename(words[0]) in ("sh", "bash"):
            found = _EXEC_LINE.search(text)
            return found[1] if found else ""
        return words[0]

    def _python(self, interpreter: str) -> ImagePython | None:
        info = self.files.info(interpreter)
        if not info:
            return self._unseen_python(interpreter)
        prefix = posixpath.dirname(posixpath.dirname(interpreter))
        venv = self.files.read(f"{prefix}/pyvenv.cfg")
        if venv is not None:
            return self._venv_python(interpreter, prefix, _parse_pyvenv(venv), info.target)
        named = _PYTHON_NAME.search(posixpath.basename(info.target))
        if not named:
            return self._unseen_python(interpreter)
        prefix = posixpath.dirname(posixpath.dirname(info.target))
        folders = [*self._pythonpath(), *self._user_site(named[1]), *_site_folders(prefix, named[1])]
        return ImagePython(interpreter, self._full_version(prefix, named[1]), self._existing(folders))

    def _unseen_python(self, interpreter: str) -> ImagePython | None:
        """An interpreter in a layer that has not been read yet: the folder of its packages tells its version."""
        if self.files.complete:
            return None
        prefix = posixpath.dirname(posixpath.dirname(interpreter))
        roots = ["/usr/local", prefix] if prefix in ("/usr", "") else [prefix]
        named = [_PYTHON_NAME.fullmatch(name) for root in roots for name in self.files.list_folder(f"{root}/lib")]
        series = {found[1] for found in named if found}
        if len(series) != 1:
            return None
        (only,) = series
        return ImagePython(interpreter, only, self._existing([*self._pythonpath(), *_site_folders(prefix, only)]))

    def _venv_python(self, interpreter: str, prefix: str, settings: dict[str, str], target: str) -> ImagePython | None:
        version = settings.get("version_info") or settings.get("version") or ""
        named = re.match(r"\d+\.\d+", version) or _PYTHON_NAME.search(posixpath.basename(target))
        if not named:
            return None
        series = named[named.lastindex or 0]
        folders = [
            *self._pythonpath(),
            f"{prefix}/lib/python{series}/site-packages",
            f"{prefix}/lib64/python{series}/site-packages",
        ]
        if settings.get("include-system-site-packages", "").lower() == "true":
            base = posixpath.dirname(posixpath.dirname(target))
            folders += [*self._user_site(series), *_site_folders(base, series)]
        full = re.match(r"\d+\.\d+\.\d+", version)
        return ImagePython(interpreter, full[0] if full else series, self._existing(folders))

    def _pythonpath(self) -> list[str]:
        return [
            folder.rstrip("/") for folder in self.environment.get("PYTHONPATH", "").split(":") if folder.startswith("/")
        ]

    def _user_site(self, series: str) -> list[str]:
        home = self.environment.get("HOME", "/root")
        return [f"{home}/.local/lib/python{series}/site-packages"]

    def _existing(self, folders: list[str]) -> tuple[str, ...]:
        return tuple(folder for folder in dict.fromkeys(folders) if self.files.info(folder))

    def _full_version(self, prefix: str, series: str) -> str:
        """3.12.3 from the header of the library, from the distribution's package or from the folder that uv installs to."""
        header = self.files.read(f"{prefix}/include/python{series}/patchlevel.h") or b""
        found = re.search(rb'#define\s+PY_VERSION\s+"([^"]+)"', header)
        if found:
            return found[1].decode().rstrip("+")
        if prefix in ("", "/usr"):
            version = self.debian_version(f"python{series}")
            return version if version.startswith(f"{series}.") else series
        named = re.search(rf"/cpython-({re.escape(series)}\.\d+)-", prefix)
        return named[1] if named else series

    def debian_version(self, package: str) -> str:
        """Upstream version of a package of a Debian or Ubuntu image: 3.12.3 of 3.12.3-1ubuntu0.8; empty if not there."""
        if self._debian is None:
            status = (self.files.read("/var/lib/dpkg/status") or b"").decode(errors="replace")
            stanzas = re.findall(r"^Package: (\S+)\n(?:.+\n)*?Version: (?:\d+:)?([^\s-]+)", status, re.M)
            self._debian = dict(stanzas)
        return self._debian.get(package, "")

    def find_package(self, python: ImagePython, name: str, editable: bool = False) -> Package | None:
        """The package that this Python would import. editable: look for editable installs as well, which takes longer."""
        for folder in python.folders:
            if self.files.info(f"{folder}/{name}/__init__.py"):
                return Package(name, f"{folder}/{name}")
        return self._editable_package(python, name) if editable else None

    def _editable_package(self, python: ImagePython, name: str) -> Package | None:
        for folder in python.folders:
            found = self.files.search(folder, _EDITABLE_PATTERNS, until=_EDITABLE_END)
            for known in _KNOWN_PTH:
                content = self.files.read(f"{folder}/{known}")
                if content is not None:
                    found[known] = content
            for path in self._editable_paths(folder, found, name):
                if self.files.info(f"{path}/__init__.py"):
                    return Package(name, path, editable=True)
        return None

    @staticmethod
    def _editable_paths(folder: str, found: dict[str, bytes], name: str) -> Iterator[str]:
        """Folders that may be the package: named by finder modules, or below folders that .pth files add to the path."""
        for file_name, content in sorted(found.items()):
            if file_name.endswith(".py"):
                mapping = _finder_mapping(content)
                if isinstance(mapping.get(name), str):
                    yield mapping[name]
                continue
            for line in content.decode(errors="replace").splitlines():
                if line.strip() and not line.startswith(("#", "import ", "import\t")):
                    yield posixpath.join(posixpath.normpath(posixpath.join(folder, line.strip())), name)

    def distributions(self, python: ImagePython) -> tuple[dict[str, str], dict[str, bytes]]:
        """(versions by normalised name, entry_points.txt by normalised name) of all installed distributions.

        It reads every folder of packages; that may take a while (see _image_files).
        """
        versions: dict[str, str] = {}
        entry_points: dict[str, bytes] = {}
        for folder in python.folders:
            found = self.files.search(
                folder, ("*.dist-info/WHEEL", "*.dist-info/INSTALLER", "*.dist-info/entry_points.txt")
            )
            for path, content in found.items():
                named = _DISTRIBUTION.match(path)
                if not named:
                    continue
                name = normalised(named[1])
                if versions.setdefault(name, named[2]) == named[2] and path.endswith("/entry_points.txt"):
                    entry_points.setdefault(name, content)
        return versions, entry_points


def normalised(name: str) -> str:
    """The one spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_entry_points(text: bytes, groups: tuple[str, ...]) -> dict[str, str]:
    """name = target of the entry points in the groups."""
    found, active = {}, False
    for line in text.decode(errors="replace").splitlines():
        heading = re.fullmatch(r"\s*\[(.+)\]\s*", line)
        if heading:
            active = heading[1].strip() in groups
        elif active and "=" in line and not line.lstrip().startswith(("#", ";")):
            name, target = line.split("=", 1)
            found[name.strip()] = target.strip()
    return found


def _parse_pyvenv(content: bytes) -> dict[str, str]:
    lines = content.decode(errors="replace").splitlines()
    return {key.strip().lower(): value.strip() for key, _equals, value in (line.partition("=") for line in lines)}


def _site_folders(prefix: str, series: str) -> list[str]:
    """Folders of packages of a Python that is no venv, as its site module orders them."""
    own = [f"{prefix}/lib/python{series}/site-packages", f"{prefix}/lib64/python{series}/site-packages"]
    if prefix not in ("/usr", ""):
        return own
    # Debian and Ubuntu: pip installs to /usr/local, packages of the distribution lie beside the library.
    return [
        f"/usr/local/lib/python{series}/dist-packages",
        "/usr/lib/python3/dist-packages",
        f"/usr/lib/python{series}/dist-packages",
        f"/usr/local/lib64/python{series}/site-packages",
        f"/usr/local/lib/python{series}/site-packages",
        f"/usr/lib64/python{series}/site-packages",
        f"/usr/lib/python{series}/site-packages",
    ]


def _finder_mapping(content: bytes) -> Table:
    try:
        return StaticModule(content).table("MAPPING") or Table()
    except Unreadable:
        return Table()
