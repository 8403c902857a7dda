"""earlyoom, where a host has it: its own command, and what it gets in addition."""

from __future__ import annotations

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _earlyoom as earlyoom
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandResult

# As `systemctl cat` prints Debian 12's, with a drop-in of the user.
DEBIAN = """\
# /lib/systemd/system/earlyoom.service
[Unit]
Description=Early OOM Daemon

[Service]
EnvironmentFile=-/etc/default/earlyoom
ExecStart=/usr/bin/earlyoom $EARLYOOM_ARGS
"""
USERS = """
# /etc/systemd/system/earlyoom.service.d/mine.conf
[Service]
ExecStart=
ExecStart=/usr/local/bin/earlyoom -m 5 \\
  -r 60
"""
COMMAND = "/usr/bin/earlyoom $EARLYOOM_ARGS"
OURS = f"\n# {earlyoom.DROP_IN}\n" + earlyoom.drop_in(COMMAND)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (DEBIAN, COMMAND),
        (DEBIAN + OURS, COMMAND),
        (DEBIAN + USERS, "/usr/local/bin/earlyoom -m 5    -r 60"),
        (DEBIAN + USERS + OURS, "/usr/local/bin/earlyoom -m 5    -r 60"),
        ("", ""),
    ],
)
def test_its_own_command_is_kept(text: str, command: str) -> None:
    assert earlyoom.command_of(text) == command


def test_the_drop_in_adds_to_its_command() -> None:
    lines = earlyoom.drop_in(COMMAND).splitlines()
    assert lines[-2] == "ExecStart="
    assert lines[-1].startswith(f"ExecStart={COMMAND} -M {2 * 1024 * 1024} --prefer '^(VLLM::|")
    # systemd would expand a dollar sign, and a percent sign.
    assert "$" not in lines[-1].replace(COMMAND, "") and "%" not in lines[-1]


STEERED = "\0".join(("/usr/bin/earlyoom", "-r", "3600", *earlyoom.ARGUMENTS)) + "\0"


@pytest.mark.parametrize(
    ("state", "present", "command_line", "steered"),
    [
        ("active", earlyoom.drop_in(COMMAND), STEERED, True),
        # Written, and not started again.
        ("active", earlyoom.drop_in(COMMAND), "/usr/bin/earlyoom\0-r\x003600\0", False),
        ("inactive", earlyoom.drop_in(COMMAND), "", True),
        # Of another version of this collection.
        ("inactive", "[Service]\n", "", False),
        ("active", "", STEERED, False),
    ],
)
def test_it_is_steered_when_its_process_has_our_arguments(
    state: str, present: str, command_line: str, steered: bool
) -> None:
    found = earlyoom.judge(COMMAND, {"ActiveState": state}, present, command_line)
    assert (found.to_steer, found.to_release, found.active) == (not steered, bool(present), state == "active")


def test_a_host_without_it_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlyoom, "_UNIT_FOLDERS", ("/nowhere",))
    assert earlyoom.look(lambda argv: pytest.fail(f"asked {argv}")) == {}


def test_a_look_at_a_host_that_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "earlyoom.service").touch()
    (tmp_path / "812").mkdir()
    (tmp_path / "812" / "cmdline").write_text(STEERED, encoding="utf-8")
    monkeypatch.setattr(earlyoom, "_UNIT_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(earlyoom, "DROP_IN", str(tmp_path / "ours.conf"))
    (tmp_path / "ours.conf").write_text(earlyoom.drop_in(COMMAND), encoding="utf-8")

    def run(argv: list[str]) -> CommandResult:
        return CommandResult(0, {"cat": DEBIAN, "show": "ActiveState=active\nMainPID=812\n"}[argv[1]], "")

    assert earlyoom.look(run, str(tmp_path))["to_steer"] is False
