"""Who holds a host, for how long, and what the host does when it hears nothing more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_program, _restore_program
from ansible_collections.dgxspark.serving.plugins.module_utils import _restore_lease as lease_module
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_lease import (
    LeaseError,
    arm,
    at_work,
    disarm,
    read_lease,
    refuse_others,
    renew,
    write_outcome,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_state import judge_restore_state
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandResult


class Clock:
    """The host's boot clock and boot."""

    seconds = 1000.0
    boot = "first"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease_module, "_boot_clock", lambda: clock.seconds)
    monkeypatch.setattr(lease_module, "boot_identity", lambda: clock.boot)
    monkeypatch.setattr(lease_module, "UNIT_FOLDER", str(tmp_path))
    return clock


class Systemctl:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, argv: Any) -> CommandResult:
        self.lines.append(" ".join(argv[1:]))
        return CommandResult(0, "", "")


def folder(tmp_path: Path) -> str:
    return str(tmp_path / "restore")


def test_a_lease_is_taken_renewed_and_given_back(clock: Clock, tmp_path: Path) -> None:
    systemctl = Systemctl()
    arm("run1", 300, folder(tmp_path), systemctl)
    assert systemctl.lines == ["enable --now dgxspark-restore.timer"]
    assert "watch" in (tmp_path / "dgxspark-restore.service").read_text(encoding="utf-8")
    lease = read_lease(folder(tmp_path))
    assert lease is not None
    assert lease.left == 300
    clock.seconds += 200
    renew("run1", 300, folder(tmp_path))
    lease = read_lease(folder(tmp_path))
    assert lease is not None
    assert lease.left == 300
    disarm(folder(tmp_path), systemctl)
    assert read_lease(folder(tmp_path)) is None
    assert systemctl.lines[-1] == "disable --now dgxspark-restore.timer"


def test_a_second_run_is_refused(clock: Clock, tmp_path: Path) -> None:
    arm("run1", 300, folder(tmp_path), Systemctl())
    refuse_others("run1", folder(tmp_path))
    with pytest.raises(LeaseError, match=r"Run run1 has been at work .* restores itself in 300 s"):
        arm("run2", 300, folder(tmp_path), Systemctl())
    clock.seconds += 301
    with pytest.raises(LeaseError, match="was broken off, and this host is bringing back"):
        refuse_others("run2", folder(tmp_path))
    assert [finding.id for finding in judge_restore_state("host", folder(tmp_path))] == ["HOST.RUN_AT_WORK"]


@pytest.mark.parametrize("change", [{"seconds": 1301.0}, {"boot": "second"}])
def test_a_run_that_slept_too_long_may_not_go_on(clock: Clock, tmp_path: Path, change: dict[str, Any]) -> None:
    arm("run1", 300, folder(tmp_path), Systemctl())
    for name, value in change.items():
        setattr(clock, name, value)
    with pytest.raises(LeaseError, match="before run run1"):
        renew("run1", 300, folder(tmp_path))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"seconds": 1301.0}, "no sign of the run for 300 s, so the host restored itself"),
        ({"boot": "second"}, "the host was rebooted, so the host restored itself"),
    ],
)
def test_the_timer_restores_only_when_it_is_due(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], expected: str | None
) -> None:
    arm("run1", 300, folder(tmp_path), Systemctl())
    for name, value in change.items():
        setattr(clock, name, value)
    called: list[str] = []

    def restore(name: str, reason: str, _folder: str) -> dict[str, Any]:
        called.append(f"{name}: {reason}")
        return {"restored": ["unit a"], "problems": []}

    monkeypatch.setattr(_restore_program, "restore", restore)
    assert _restore_program.main(["--folder", folder(tmp_path), "watch"]) == 0
    assert called == ([f"run1: {expected}"] if expected else [])


def test_only_one_at_a_time(tmp_path: Path) -> None:
    with (
        at_work(folder(tmp_path)),
        pytest.raises(LeaseError, match="Another teardown or restore"),
        at_work(folder(tmp_path)),
    ):
        pass
    with at_work(folder(tmp_path)):
        pass


def test_the_next_run_says_what_happened(tmp_path: Path) -> None:
    outcome = {
        "run": "run1",
        "reason": "the host was rebooted, so the host restored itself",
        "at": 0.0,
        "restored": ["unit a"],
        "problems": [],
    }
    write_outcome(outcome, folder(tmp_path))
    findings = judge_restore_state("host", folder(tmp_path))
    assert [(finding.id, finding.severity) for finding in findings] == [("HOST.RESTORED", "info")]
    assert "the host was rebooted" in findings[0].message
    write_outcome({**outcome, "problems": ["unit b is failed"]}, folder(tmp_path))
    assert judge_restore_state("host", folder(tmp_path))[0].severity == "warning"


def test_the_program_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one file, with no Ansible and no collection in reach."""
    monkeypatch.setattr(_host_program, "PROGRAM_FOLDER", str(tmp_path))
    assert _host_program.install_program("dgxspark-restore", _restore_program) is True
    assert _host_program.install_program("dgxspark-restore", _restore_program) is False
    (tmp_path / "restore").mkdir()
    (tmp_path / "restore" / "run7.json").write_text(json.dumps({"run": "run7", "created": 0.0}), encoding="utf-8")
    command = [sys.executable, "-I", str(tmp_path / "dgxspark-restore.pyz"), "--folder", folder(tmp_path)]
    assert subprocess.check_output([*command, "list"], text=True, env={}, cwd="/").split() == ["run7"]
    done = subprocess.run([*command, "restore", "run8"], text=True, capture_output=True, check=False, env={}, cwd="/")
    assert done.returncode == 2
    assert "There is no restore point run8" in done.stderr
