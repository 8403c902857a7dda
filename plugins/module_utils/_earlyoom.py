# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""earlyoom, where a host has it: what it would end when memory is short, and how it is kept from ending the wrong process.

It chooses by the memory of the process itself, and what an engine holds for the GPU is not in there: it ends what the user or the host
needs. Steered, it ends a rank of the engine, leaves the host's own services alone, and acts only after the memory guard has not.

PRIVATE to this collection.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._host_kernel import read_text
from ansible_collections.dgxspark.serving.plugins.module_utils._memguard import FLOOR_MIB
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandRunner, run_command

UNIT = "earlyoom.service"
# The last of the unit's drop-ins by name, so that it adds to what the user's own have set.
DROP_IN = f"/etc/systemd/system/{UNIT}.d/zz-dgxspark.conf"
_UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")

# earlyoom(1) matches them with the first 15 characters of a process's name. So call themselves: the ranks of vLLM and of SGLang
# (setproctitle of both), and the workers of Ray, in which vLLM's ranks live.
PREFER = "^(VLLM::|sglang::|ray::)"
# What the host needs to be reached and to bring the engine back; with raylet or gcs_server all of Ray goes.
AVOID = "^(systemd|sshd|dbus-daemon|dockerd|containerd|dgxspark-|raylet|gcs_server|nvidia-)"
# Half the floor of the memory guard: it knows which container to end, and comes first.
FLOOR_KIB = FLOOR_MIB * 1024 // 2
# Of -m and -M the lower one counts, of an option that stands twice the last (earlyoom(1), version 1.6 and newer).
ARGUMENTS = ("-M", str(FLOOR_KIB), "--prefer", PREFER, "--avoid", AVOID)


@dataclass(frozen=True)
class Earlyoom:
    """active: whether it runs. to_steer: what a user who consents still needs, since it does not run, or would not, with our arguments.
    to_release: what one who does not consent still needs, since our drop-in is there. drop_in, path: its text, and where it belongs.
    """

    active: bool
    to_steer: bool
    to_release: bool
    drop_in: str
    path: str = DROP_IN


def command_of(unit_text: str) -> str:
    """Its command as `systemctl cat` prints the unit with its drop-ins, without ours. Empty where there is none."""
    command, ours = "", False
    for line in unit_text.replace("\\\n", " ").splitlines():
        if line.startswith("# /"):
            ours = line[2:].strip() == DROP_IN
        found = re.match(r"\s*ExecStart\s*=\s*(.*)", line)
        if found and not ours:
            command = found[1].strip()
    return command


def drop_in(command: str) -> str:
    """The text of our drop-in; command: as command_of() returns it."""
    arguments = " ".join(f"'{word}'" if word.startswith("^") else word for word in ARGUMENTS)
    return (
        "# By dgxspark.serving, role host_setup (host_setup_steer_earlyoom). Removing it and restarting earlyoom undoes it.\n"
        f"[Service]\nExecStart=\nExecStart={command} {arguments}\n"
    )


def look(run: CommandRunner = run_command, proc_root: str = "/proc") -> dict[str, Any]:
    """An Earlyoom as a dictionary; empty where the host has none."""
    if not any(os.path.exists(f"{folder}/{UNIT}") for folder in _UNIT_FOLDERS):
        return {}
    command = command_of(run(["systemctl", "cat", UNIT]).stdout)
    if not command:
        return {}
    shown = run(["systemctl", "show", UNIT, "--property=ActiveState,MainPID"]).stdout
    state = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    return asdict(
        judge(command, state, read_text(DROP_IN), read_text(f"{proc_root}/{state.get('MainPID', '0')}/cmdline"))
    )


def judge(command: str, state: dict[str, str], present: str, command_line: str) -> Earlyoom:
    """state: ActiveState of the unit; present: text of the drop-in; command_line: of its process, with NUL between the words."""
    active = state.get("ActiveState") == "active"
    wanted = drop_in(command)
    runs_so = not active or command_line.rstrip("\0").split("\0")[-len(ARGUMENTS) :] == list(ARGUMENTS)
    return Earlyoom(active, not (present == wanted and runs_so), bool(present), wanted)
