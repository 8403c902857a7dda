# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One look at a rank: its units, what is new in their journal, Ray's nodes and the API.

PRIVATE to this collection. Everything here is quick: the wait on the control node calls it every few seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandRunner,
    WorkloadError,
    run_command,
)

# Lines of the journal that one look returns at most; the newest are kept.
JOURNAL_LINES = 400

# Asks Ray itself, inside the Ray container, with the Ray of the image. Prints one line of JSON.
RAY_NODES_PROGRAM = """
import json, ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
print("NODES " + json.dumps({"version": ray.__version__, "nodes": [
    {"address": n["NodeManagerAddress"], "alive": n["Alive"], "gpus": n["Resources"].get("GPU", 0)} for n in ray.nodes()]}))
"""


@dataclass(frozen=True)
class UnitState:
    """result: systemd's own word for how the service ended; restarts: how often systemd started it again."""

    name: str
    active: str
    sub: str
    result: str
    restarts: int

    @property
    def described(self) -> str:
        return f"{self.name} is {self.active} ({self.result})"

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def unit_states(names: Sequence[str], run: CommandRunner = run_command) -> list[UnitState]:
    states = []
    for name in names:
        result = run(["systemctl", "show", name, "--property=ActiveState,SubState,Result,NRestarts"])
        if result.returncode:
            raise WorkloadError(f"Cannot look at unit {name}: {result.stderr.strip()}")
        values = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
        states.append(
            UnitState(
                name,
                values.get("ActiveState", ""),
                values.get("SubState", ""),
                values.get("Result", ""),
                int(values.get("NRestarts") or 0),
            )
        )
    return states


def journal(names: Sequence[str], cursor: str, since: float, run: CommandRunner = run_command) -> tuple[list[str], str]:
    """(new lines, cursor after them). Without a cursor: what was written since C(since), seconds since 1970."""
    argv = ["journalctl", "--no-pager", "--output=cat", "--show-cursor", f"--lines={JOURNAL_LINES}"]
    argv += [f"--unit={name}" for name in names]
    argv.append(f"--after-cursor={cursor}" if cursor else f"--since=@{int(since)}")
    result = run(argv)
    # Without new entries journalctl ends with 1 and says nothing (systemd 252).
    if result.returncode and result.stderr.strip():
        raise WorkloadError(f"Cannot read the journal of {', '.join(names)}: {result.stderr.strip()}")
    lines = []
    for line in result.stdout.splitlines():
        if line.startswith("-- cursor: "):
            cursor = line.removeprefix("-- cursor: ").strip()
        elif line.strip() and not line.startswith("-- "):
            lines.append(line)
    return lines, cursor


def ray_nodes(container: str, run: CommandRunner = run_command) -> dict[str, Any] | None:
    """C({version, nodes: [{address, alive, gpus}]}) as Ray reports them; None while Ray does not answer."""
    result = run(["docker", "exec", container, "python3", "-c", RAY_NODES_PROGRAM])
    for line in result.stdout.splitlines():
        if line.startswith("NODES "):
            answer: dict[str, Any] = json.loads(line.removeprefix("NODES "))
            return answer
    return None
