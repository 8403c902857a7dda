"""Why a host gave no findings, in words that name the way out."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.action.findings_report import finding_of_failure


@pytest.mark.parametrize(
    ("result", "expected", "words"),
    [
        (
            {"unreachable": True, "msg": "Failed to connect to the host via ssh: no route"},
            "HOST.UNREACHABLE",
            "through the head",
        ),
        ({"failed": True, "msg": "Task failed: Incorrect sudo password"}, "HOST.BECOME_REFUSED", "--ask-become-pass"),
        ({"failed": True, "msg": "Missing sudo password"}, "HOST.BECOME_REFUSED", "--ask-become-pass"),
        ({"failed": True, "msg": "Module crashed"}, "HOST.CHECK_FAILED", ""),
        # ssh that asks for a password is not sudo.
        ({"unreachable": True, "msg": "Permission denied (publickey,password)"}, "HOST.UNREACHABLE", "keys"),
    ],
)
def test_finding_of_failure(result: dict[str, Any], expected: str, words: str) -> None:
    finding = finding_of_failure("spark-1", result)
    assert finding.id == expected
    assert words in finding.remedy
