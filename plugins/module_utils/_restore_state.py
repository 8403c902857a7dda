# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host says about runs before this one: one that still holds it, one that it has undone by itself.

PRIVATE to this collection.
"""

from __future__ import annotations

import time

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_lease import (
    SERVICE,
    LeaseError,
    read_outcome,
    refuse_others,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import RESTORE_FOLDER


def judge_restore_state(subject: str, folder: str = RESTORE_FOLDER) -> list[Finding]:
    """Findings about the last runs on this host. Needs root, who alone may read the folder."""
    findings = []
    try:
        refuse_others("", folder)
    except LeaseError as error:
        findings.append(
            Finding(
                "HOST.RUN_AT_WORK",
                ERROR,
                subject,
                str(error),
                "Two runs on one host would stop each other's services. Wait, or call playbooks/rollback.yml.",
            )
        )
    outcome = read_outcome(folder)
    if outcome:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(outcome["at"]))
        again = ", ".join(outcome["restored"]) or "nothing had run"
        problems = "; ".join(outcome["problems"])
        findings.append(
            Finding(
                "HOST.RESTORED",
                WARNING if problems else INFO,
                subject,
                f"Run {outcome['run']} was undone here at {at}: {outcome['reason']}. Runs again: {again}."
                + (f" Does not: {problems}." if problems else ""),
                f"Its log: journalctl -u {SERVICE}. A deployment that is accepted ends this notice."
                if problems
                else "",
            )
        )
    return findings
