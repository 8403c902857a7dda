# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._host_secrets import secret_digests, secrets_in_place
from ansible_collections.dgxspark.serving.plugins.module_utils._host_services import bring_up, units_to_start
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandResult, WorkloadError

GUARD, RAY = "dgxspark-memguard.service", "dgxspark-ray.service"


class Systemd:
    """Answers like systemctl and journalctl: the state of each unit, and what a start makes of it."""

    def __init__(self, states: dict[str, tuple[str, str]], broken: Sequence[str] = ()) -> None:
        self.states, self.broken = dict(states), broken
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str]) -> CommandResult:
        self.asked.append(" ".join(argv[:2]))
        if argv[0] == "journalctl":
            return CommandResult(0, "nft: command not found\n", "")
        if argv[1] == "show":
            names = [name for name in argv[2:] if not name.startswith("--")]
            blocks = [
                f"Id={name}\nLoadState=loaded\nActiveState={self.states[name][0]}\nUnitFileState={self.states[name][1]}"
                for name in names
            ]
            return CommandResult(0, "\n\n".join(blocks), "")
        if argv[1] == "start":
            for name in argv[2:]:
                self.states[name] = ("failed" if name in self.broken else "active", "enabled")
            return CommandResult(1 if self.broken else 0, "", 'See "systemctl status" for details.')
        return CommandResult(0, "", "")


def test_only_what_is_not_there_is_started() -> None:
    systemd = Systemd({GUARD: ("active", "enabled"), RAY: ("inactive", "enabled")})
    assert units_to_start([GUARD, RAY], systemd) == [RAY]
    assert units_to_start([], systemd) == []
    assert units_to_start([GUARD], Systemd({GUARD: ("active", "disabled")})) == [GUARD]


def test_one_transaction_for_all_units() -> None:
    systemd = Systemd({GUARD: ("inactive", "disabled"), RAY: ("inactive", "disabled")})
    bring_up([GUARD, RAY], systemd)
    assert systemd.asked == ["systemctl enable", "systemctl start"]


def test_the_unit_that_does_not_start_is_named_with_its_journal() -> None:
    systemd = Systemd({GUARD: ("inactive", "disabled"), RAY: ("inactive", "disabled")}, broken=[RAY])
    with pytest.raises(WorkloadError, match=r"dgxspark-ray\.service is failed; its journal ends with:\n +nft: command"):
        bring_up([GUARD, RAY], systemd)


def test_a_changed_file_of_units_that_run_is_read_anew() -> None:
    systemd = Systemd({})
    bring_up([], systemd)
    assert systemd.asked == ["systemctl daemon-reload"]


KEY, TOKEN = "/etc/dgxspark/api-key", "/etc/dgxspark/ray-token"


@pytest.mark.parametrize(
    ("known", "in_place"),
    [
        ({"head": {KEY: "1", TOKEN: "2"}, "worker": {TOKEN: "2"}}, True),
        ({"head": {KEY: "1", TOKEN: "2"}, "worker": {TOKEN: "3"}}, False),
        ({"head": {KEY: "1", TOKEN: "2"}, "worker": {}}, False),
        ({"head": {KEY: "1", TOKEN: "2"}, "worker": None}, False),
        # The key of the API is the head's own.
        ({"head": {TOKEN: "2"}, "worker": {TOKEN: "2"}}, True),
        ({"head": {KEY: "1"}, "worker": {TOKEN: "2"}}, False),
        ({}, False),
    ],
)
def test_secrets_are_in_place_where_all_hosts_have_the_same(known: dict[str, dict[str, str]], in_place: bool) -> None:
    assert secrets_in_place(known, "head", [TOKEN]) is in_place


def test_digests_tell_no_secret(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("planted-secret\n")
    (tmp_path / "empty").touch()
    found = secret_digests([str(tmp_path / name) for name in ("token", "empty", "missing")])
    assert list(found) == [str(tmp_path / "token")] and "planted" not in str(found)
