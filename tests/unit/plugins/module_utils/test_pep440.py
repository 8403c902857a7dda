# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._pep440 import Requirement, Version

# In ascending order; the entries of one line are equal.
ORDER = [
    ["0.1.dev16260+g388fd5153"],
    ["0.9.0", "0.9", "v0.9"],
    ["0.17.0.dev1"],
    ["0.17.0.dev2"],
    ["0.17a1"],
    ["0.17.0b2", "0.17.0-beta.2"],
    ["0.17rc1.dev4"],
    ["0.17rc1", "0.17.0c1", "0.17.RC1"],
    ["0.17rc2"],
    ["0.17rc10"],
    ["0.17.0", "0.17+cu130", "0.17.0+nv26.03"],
    ["0.17.0.post1", "0.17-1"],
    ["0.17.1rc1"],
    ["0.17.1rc1.post2"],
    ["0.17.1"],
    ["0.100"],
    ["2.9.1"],
    ["2.10.0"],
]


@pytest.mark.parametrize("lower, higher", list(itertools.pairwise(ORDER)))
def test_order(lower: list[str], higher: list[str]) -> None:
    for one, other in itertools.product(lower, higher):
        assert Version.parse(one) < Version.parse(other)
        assert Version.parse(other) > Version.parse(one)
        assert Version.parse(one) != Version.parse(other)


@pytest.mark.parametrize("equal", [line for line in ORDER if len(line) > 1])
def test_equal(equal: list[str]) -> None:
    assert len({Version.parse(text) for text in equal}) == 1


@pytest.mark.parametrize("text", ["", "nightly", "1..2", "1.0-gabc", "cu130", "1.0+", "1!2.0"])
def test_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        Version.parse(text)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0.1.dev16260+g388fd5153.d20260430", True),
        ("0.1.dev1", True),
        ("0.1", False),
        ("0.1rc1", False),
        ("0.19.1rc1.dev46+g12", False),
    ],
)
def test_without_release(text: str, expected: bool) -> None:
    assert Version.parse(text).without_release is expected


@pytest.mark.parametrize(
    "requirement, met, unmet",
    [
        (">=0.17", ["0.17.0", "0.17.1rc1", "0.17+cu130", "1.0"], ["0.17rc1", "0.16.9", "0.17.0.dev3"]),
        (">=0.17,<0.20", ["0.17", "0.19.9"], ["0.20", "0.16"]),
        (">= 0.17 , != 0.18.0", ["0.17", "0.18.1"], ["0.18", "0.18.0+cu130"]),
        ("0.17.1", ["0.17.1", "0.17.1+cu130"], ["0.17.2", "0.17.1rc1"]),
        ("==0.17.*", ["0.17", "0.17.9", "0.17.0rc1"], ["0.18", "0.1", "0.170"]),
        ("!=0.17.*", ["0.18"], ["0.17.3"]),
        ("~=2.10", ["2.10", "2.11.1"], ["3.0", "2.9"]),
        ("~=2.10.0", ["2.10.3"], ["2.11", "2.9.9"]),
        (">2.28.9", ["2.28.9.post1", "2.30.4"], ["2.28.9", "2.28.9+cuda13.0"]),
        ("<=2.28.9", ["2.28.9", "2.27"], ["2.28.10"]),
    ],
)
def test_requirement(requirement: str, met: list[str], unmet: list[str]) -> None:
    parsed = Requirement.parse(requirement)
    assert [text for text in met if not parsed.met_by(Version.parse(text))] == []
    assert [text for text in unmet if parsed.met_by(Version.parse(text))] == []


@pytest.mark.parametrize("text", ["", "newest", ">=", ">=0.17.*", "~=2", "=>1.0", ">=0.17 <0.20", ">=0.17,"])
def test_no_requirement(text: str) -> None:
    with pytest.raises(ValueError):
        Requirement.parse(text)
