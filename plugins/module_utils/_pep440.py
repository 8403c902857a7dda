# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Python versions in the order of PEP 440, without the packaging library, which hosts do not have.

PRIVATE to this collection. Local parts (+cu130, +nv26.03) are ignored: they name a build, not a release. Epochs (1!2.0)
are not known: no package of interest has one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_VERSION = re.compile(
    r"""v?
    (?P<release>\d+(?:\.\d+)*)
    (?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|c|rc)[-_.]?(?P<pre_number>\d*))?
    (?P<post>-(?P<post_implicit>\d+)|[-_.]?(?:post|rev|r)[-_.]?(?P<post_number>\d*))?
    (?P<dev>[-_.]?dev[-_.]?(?P<dev_number>\d*))?
    (?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?""",
    re.VERBOSE | re.IGNORECASE,
)
_PRE_ORDER = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_CLAUSE = re.compile(r"\s*(~=|===?|!=|<=|>=|<|>)?\s*(\S+?)\s*")
# What setuptools-scm makes of a source tree without tags: such a build says nothing about the release it is near.
_NO_RELEASE = (0, 1)

# (release, pre-release, post-release, dev-release), each in a form that sorts as PEP 440 says.
_Key = tuple[tuple[int, ...], tuple[int, int], int, float]


@total_ordering
@dataclass(frozen=True, eq=False)
class Version:
    """One version. text: as it was written."""

    text: str
    key: _Key
    development: bool

    @classmethod
    def parse(cls, text: str) -> Version:
        """Raises ValueError for what is no version."""
        found = _VERSION.fullmatch(text.strip())
        if not found:
            raise ValueError(f"{text!r} is not a version as PEP 440 defines them")
        release = tuple(int(part) for part in found["release"].split("."))
        while len(release) > 1 and release[-1] == 0:
            release = release[:-1]
        pre = (3, 0)
        if found["pre"]:
            pre = (_PRE_ORDER[found["pre"].lower()], int(found["pre_number"] or 0))
        elif found["dev"] and not found["post"]:
            # 1.0.dev1 comes before 1.0a1.
            pre = (-1, 0)
        post = -1
        if found["post"]:
            post = int(found["post_implicit"] or found["post_number"] or 0)
        dev = float(found["dev_number"] or 0) if found["dev"] else float("inf")
        return cls(text.strip(), (release, pre, post, dev), bool(found["dev"]))

    @property
    def release(self) -> tuple[int, ...]:
        return self.key[0]

    @property
    def without_release(self) -> bool:
        """A development build of which is not known to which release it belongs (0.1.dev16260+g388fd5153)."""
        return self.development and self.release == _NO_RELEASE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Version) -> bool:
        return self.key < other.key


@dataclass(frozen=True)
class Requirement:
    """Clauses that all must hold, such as C(>=0.17,<0.20). A bare version stands for C(==)."""

    text: str
    clauses: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Raises ValueError for what is no requirement."""
        clauses = []
        for part in text.split(","):
            found = _CLAUSE.fullmatch(part)
            if not found:
                raise ValueError(f"{text!r} is not a requirement; write it like '>=0.17,<0.20'")
            operator, version = found[1] or "==", found[2]
            wildcard = version.endswith(".*")
            if wildcard and operator not in ("==", "!="):
                raise ValueError(f"{text!r}: .* goes with == and != only")
            parsed = Version.parse(version.removesuffix(".*"))
            if operator == "~=" and "." not in version:
                raise ValueError(f"{text!r}: ~= needs a version with two numbers or more")
            clauses.append((operator, version if wildcard else parsed.text))
        return cls(text.strip(), tuple(clauses))

    def met_by(self, version: Version) -> bool:
        return all(_holds(version, operator, wanted) for operator, wanted in self.clauses)


def _starts_with(version: Version, prefix: str) -> bool:
    numbers = tuple(int(part) for part in prefix.split("."))
    padded = version.release + (0,) * len(numbers)
    return padded[: len(numbers)] == numbers


def _holds(version: Version, operator: str, wanted: str) -> bool:
    if wanted.endswith(".*"):
        return _starts_with(version, wanted[:-2]) == (operator == "==")
    other = Version.parse(wanted)
    if operator == "~=":
        # ~=2.2.1 is >=2.2.1 and ==2.2.*; trailing zeros count here, so the release is taken as it was written.
        written = _VERSION.fullmatch(wanted)
        series = written["release"].rpartition(".")[0] if written else ""
        return version >= other and _starts_with(version, series)
    return {
        "==": version == other,
        "===": version == other,
        "!=": version != other,
        "<": version < other,
        "<=": version <= other,
        ">": version > other,
        ">=": version >= other,
    }[operator]
