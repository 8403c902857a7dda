# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nobody is locked out unsaid: the port of SSH, and services that are kept."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._host_needs import Needs
from ansible_collections.dgxspark.serving.plugins.module_utils._host_reach import judge_kept, judge_ssh, ssh_port
from ansible_collections.dgxspark.serving.plugins.module_utils._host_survey import survey_host
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandResult
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_host import FakeHost

CLOSED = ((10001, 10001), (32768, 60999))
UTILS = "ansible_collections.dgxspark.serving.plugins.module_utils"


def below_a_session(connection: str | None, *between: str) -> int:
    """What a process says that a shell of that session has started, with the variable taken away on its way as sudo does."""
    environment = {name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if connection is not None:
        environment["SSH_CONNECTION"] = connection
    program = f"from {UTILS}._host_reach import ssh_port; print(ssh_port())"
    # A shell that is not the last command's process: it stays above.
    script = f"{' '.join(between)} {sys.executable} -c '{program}'; exit $?"
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("between", [(), ("env", "-u", "SSH_CONNECTION")])
def test_the_port_of_the_session_above_is_found(between: tuple[str, ...]) -> None:
    assert below_a_session("10.1.230.5 51234 10.1.230.180 40022", *between) == 40022


@pytest.mark.parametrize("connection", ["", "UNKNOWN", "a b c d"])
def test_a_session_that_does_not_tell_a_port_is_none(connection: str) -> None:
    assert below_a_session(connection) in (0, ssh_port())


@pytest.mark.parametrize(("port", "refused"), [(0, False), (22, False), (2222, False), (10001, True), (40022, True)])
def test_ssh_on_a_closed_port_is_refused(port: int, refused: bool) -> None:
    findings = judge_ssh("spark-1", port, CLOSED)
    assert [finding.id for finding in findings] == (["HOST.SSH_PORT_CLOSED"] if refused else [])
    assert all(str(port) in finding.message and f"[{port}]" in finding.remedy for finding in findings)


def row(**more: Any) -> dict[str, Any]:
    return {"port": 40000, "address": "0.0.0.0", "systemd_unit": "", "container": "", **more}


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        (row(systemd_unit="grafana.service"), True),
        (row(container="reranker"), True),
        (row(container="reranker", address="::"), True),
        (row(container="reranker", address="127.0.0.1"), False),
        (row(container="reranker", address="::1"), False),
        (row(container="other"), False),
        (row(), False),
    ],
)
def test_a_kept_service_on_a_closed_port_is_said(listener: dict[str, Any], said: bool) -> None:
    findings = judge_kept("spark-1", [listener, listener], ["container reranker", "unit grafana.service"])
    assert [finding.id for finding in findings] == (["HOST.KEPT_PORT_CLOSED"] if said else [])


@pytest.mark.parametrize("closed", [True, False])
def test_the_survey_finds_a_kept_service_that_really_listens(tmp_path: Path, closed: bool) -> None:
    host = FakeHost()
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen()
        port = server.getsockname()[1]

        def run(argv):
            if argv[:2] == ["docker", "info"]:
                return CommandResult(0, '{"ServerVersion": "27.1"}', "")
            if argv[0] not in ("docker", "systemctl"):
                return CommandResult(127, "", "not found")
            result = host(argv)
            if argv[:2] == ["docker", "inspect"]:
                published = result.stdout.replace(
                    '"Ports": {}', f'"Ports": {{"80/tcp": [{{"HostPort": "{port}"}}]}}', 1
                )
                return CommandResult(0, published, "")
            return result

        needs = Needs(
            closed=((port, port),) if closed else ((port + 1, port + 1),), stop={}, keep={"containers": ["glm"]}
        )
        survey = survey_host("host", needs, str(tmp_path), run=run)
    found = [finding for finding in survey.findings if finding.id == "HOST.KEPT_PORT_CLOSED"]
    assert len(found) == closed and all(f"[{port}]" in finding.remedy for finding in found)
