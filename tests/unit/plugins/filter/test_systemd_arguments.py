from __future__ import annotations

import pytest
from ansible_collections.dgxspark.serving.plugins.filter.systemd_arguments import systemd_arguments


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a", "b c"], '"a" "b c"'),
        (['{"x": 1}'], '"{\\"x\\": 1}"'),
        (["100%"], '"100%%"'),
        (['exec "$@"'], '"exec \\"$$@\\""'),
        (["back\\slash"], '"back\\\\slash"'),
        ([8000], '"8000"'),
        ([""], '""'),
    ],
)
def test_what_systemd_would_expand_is_escaped(arguments: list[object], expected: str) -> None:
    assert systemd_arguments(arguments) == expected


def test_a_line_break_is_refused() -> None:
    with pytest.raises(ValueError, match="line break"):
        systemd_arguments(["a\nExecStartPre=/bin/evil"])
