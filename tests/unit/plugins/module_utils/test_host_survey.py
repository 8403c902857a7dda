"""The survey of a host: engine, listeners, disks."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_survey
from ansible_collections.dgxspark.serving.plugins.module_utils._host_needs import Needs
from ansible_collections.dgxspark.serving.plugins.module_utils._host_survey import survey_host
from ansible_collections.dgxspark.serving.plugins.module_utils._listeners import listeners, parse_listeners
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandResult, CommandRunner

PROC_NET_TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0CF0A8C0:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0
   1: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 12346 1 0 100 0 0 10 0
"""


def test_listeners_are_parsed() -> None:
    (entry,) = parse_listeners(PROC_NET_TCP)
    assert (entry.port, entry.address, entry.inode) == (8000, "192.168.240.12", "12345")


def test_a_real_listener_is_traced_to_this_process() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        (entry,) = listeners([port])
    assert (entry.port, entry.pid, entry.address) == (port, os.getpid(), "127.0.0.1")
    assert listeners([port]) == []


def engine(info: CommandResult) -> CommandRunner:
    def run(argv: Sequence[str]) -> CommandResult:
        if argv[:2] == ["docker", "info"]:
            return info
        if argv[:2] == ["systemctl", "show"]:
            return CommandResult(0, "LoadState=not-found\n", "")
        return CommandResult(0, "", "")

    return run


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (CommandResult(0, json.dumps({"ServerVersion": "27.1", "DockerRootDir": "/var/lib/docker"}), ""), []),
        (CommandResult(127, "", "not found"), ["HOST.DOCKER_MISSING"]),
        # docker info ends with 0 and holds the error when the daemon is down (20.10), newer ones end with 1.
        (
            CommandResult(0, json.dumps({"ServerErrors": ["Cannot connect to the Docker daemon"]}), ""),
            ["HOST.DOCKER_NOT_RUNNING"],
        ),
        (CommandResult(1, "", "Cannot connect to the Docker daemon"), ["HOST.DOCKER_NOT_RUNNING"]),
        (CommandResult(124, "", "docker gave no answer in 120 s"), ["HOST.DOCKER_NOT_RUNNING"]),
        (CommandResult(0, json.dumps({"ServerVersion": "19.03.1"}), ""), ["HOST.DOCKER_OLD"]),
    ],
)
def test_the_engine_is_judged(info: CommandResult, expected: list[str]) -> None:
    survey = survey_host("host", Needs(paths={"model": "/nowhere/at/all"}), "/nowhere", run=engine(info))
    docker_findings = [finding.id for finding in survey.findings if finding.id.startswith("HOST.DOCKER")]
    assert docker_findings == expected
    assert survey.facts["disks"]["model"]["exists"] is False
    assert survey.facts["disks"]["model"]["total_gib"] > 0


@pytest.mark.parametrize(
    ("planned", "found", "expected"),
    [(True, None, ["HOST.NFT_MISSING"]), (True, "/usr/sbin/nft", []), (False, None, [])],
)
def test_a_firewall_needs_nft(
    monkeypatch: pytest.MonkeyPatch, planned: bool, found: str | None, expected: list[str]
) -> None:
    monkeypatch.setattr(_host_survey.shutil, "which", lambda *_arguments, **_options: found)
    info = CommandResult(0, json.dumps({"ServerVersion": "27.1"}), "")
    survey = survey_host("host", Needs(closed=((32768, 60999),) if planned else ()), "/nowhere", run=engine(info))
    assert [item.id for item in survey.findings if item.id == "HOST.NFT_MISSING"] == expected


def test_a_brief_look_finds_that_docker_does_not_answer_and_asks_for_nothing_else(tmp_path) -> None:
    asked: list[str] = []

    def run(argv):
        asked.append(" ".join(argv[:2]))
        return CommandResult(1, "", "Cannot connect to the Docker daemon")

    survey = survey_host("host", Needs(), str(tmp_path), run=run, brief=True)
    assert asked == ["docker info"]
    assert "HOST.DOCKER_NOT_RUNNING" in [finding.id for finding in survey.findings]
    assert "architecture" in survey.facts and "containers" not in survey.facts


def test_notes_that_are_damaged_are_said_and_not_used(tmp_path, monkeypatch) -> None:
    path = tmp_path / "ladder.json"
    path.write_text('{"a": 1}\\n', encoding="utf-8")
    monkeypatch.setattr(_host_survey, "LADDER_FILE", str(path))
    survey = survey_host("host", Needs(), str(tmp_path), run=engine(CommandResult(0, "{}", "")))
    assert survey.facts["learned"] == {}
    (finding,) = [finding for finding in survey.findings if finding.id == "HOST.NOTES_DAMAGED"]
    assert str(path) in finding.message
