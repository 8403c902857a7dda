"""Record a command as an animated picture: record.py PICTURE.svg COMMAND... (needs npx and svg-term-cli).

The recording is of a real run: what the command prints, when it prints it. Only pauses are shortened.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

COLUMNS, ROWS = 110, 32
# Nobody wants to watch a model load: longer pauses become this many seconds.
LONGEST_PAUSE_SECONDS = 0.8
# What a reader has time for at the end.
LAST_PAUSE_SECONDS = 8.0
# Ansible prints a heading for each local step of a role; the recording is for those who want to see the gates.
_NOISE = re.compile(r"^(TASK \[.*\] \*+|ok: \[.*|skipping: \[.*|changed: \[.*|included: .*|PLAY \[.*|)$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def recorded(command: list[str]) -> list[tuple[float, str]]:
    """(seconds since the start, text) as it came, whole lines."""
    events: list[tuple[float, str]] = []
    began, rest = time.monotonic(), b""

    def read(descriptor: int) -> bytes:
        nonlocal rest
        data = os.read(descriptor, 4096)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            events.append((time.monotonic() - began, line.decode("utf-8", "replace").rstrip("\r")))
        return data

    os.environ.update(COLUMNS=str(COLUMNS), LINES=str(ROWS), ANSIBLE_FORCE_COLOR="1")
    status = os.waitstatus_to_exitcode(pty.spawn(command, read))
    if status:
        sys.exit(f"{' '.join(command)} ended with {status}; nothing is kept.")
    return events


def shortened(events: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Without the headings of single tasks, and without long pauses."""
    result: list[tuple[float, str]] = []
    at, last = 0.0, 0.0
    for seconds, line in events:
        if _NOISE.match(_COLOUR.sub("", line)):
            continue
        at += min(seconds - last, LONGEST_PAUSE_SECONDS)
        last = seconds
        result.append((at, line))
    return result


def asciicast(command: list[str], events: list[tuple[float, str]]) -> str:
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "env": {"TERM": "xterm-256color"}}
    lines = [json.dumps(head), json.dumps([0.0, "o", f"$ {' '.join(command)}\r\n"])]
    lines += [json.dumps([round(at + 0.5, 3), "o", f"{line}\r\n"]) for at, line in events]
    lines.append(json.dumps([round(events[-1][0] + 0.5 + LAST_PAUSE_SECONDS, 3), "o", ""]))
    return "\n".join(lines) + "\n"


def main(picture: Path, command: list[str]) -> None:
    cast = asciicast(command, shortened(recorded(command)))
    options = ["--window", "--no-cursor", f"--width={COLUMNS}", f"--height={ROWS}"]
    subprocess.run(["npx", "--yes", "svg-term-cli", *options, f"--out={picture}"], input=cast, text=True, check=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
