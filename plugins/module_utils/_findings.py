# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a check has to say, in the one form that every check of this collection uses.

PRIVATE to this collection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

ERROR = "error"
WARNING = "warning"
INFO = "info"
# Worst first: reports and messages show findings in this order.
SEVERITIES = (ERROR, WARNING, INFO)


@dataclass(frozen=True)
class Finding:
    """One statement of a check.

    id: stable, upper-case, dotted (C(MEMORY.DOES_NOT_FIT)); subject: what it is about (a host, a device, an image);
    message: what was found; remedy: the way out; evidence: the verbatim line or value it rests on.
    """

    id: str
    severity: str
    subject: str
    message: str
    remedy: str = ""
    evidence: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def as_dicts(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """The findings as results of a module, worst first, otherwise in the order in which they were made."""
    return [finding.as_dict() for finding in sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))]


def worst_severity(findings: Iterable[Finding]) -> str | None:
    present = {finding.severity for finding in findings}
    return next((severity for severity in SEVERITIES if severity in present), None)


def describe(findings: Iterable[Finding]) -> str:
    """The findings for a terminal: a line each, the remedy below it."""
    lines = []
    for finding in sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)):
        lines.append(f"{finding.severity}: {finding.subject}: {finding.message} [{finding.id}]")
        if finding.remedy:
            lines.append("  -> " + finding.remedy.replace("\n", "\n     "))
    return "\n".join(lines)


def findings_argument_spec() -> dict[str, Any]:
    """The option that every check has; documented in the doc fragment C(findings)."""
    return {"fail_on": {"type": "list", "elements": "str", "choices": list(SEVERITIES), "default": []}}


def refused(findings: Iterable[Finding], fail_on: Iterable[str]) -> list[Finding]:
    """The findings for which the caller wants the module to fail."""
    severities = set(fail_on)
    return [finding for finding in findings if finding.severity in severities]
