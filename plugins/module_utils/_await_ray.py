# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Waits on the head until Ray has all planned nodes, so that hosts may boot in any order. The engine's unit runs it first.

PRIVATE to this collection. Standard library only, it is a host program.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._rank_snapshot import ray_nodes
from ansible_collections.dgxspark.serving.plugins.module_utils._rank_watch import READY, ray_verdict

PROGRAM = "dgxspark-await-ray"
# A look is a start of Python in Ray's container, about a second; a host needs a minute to boot.
LOOK_EVERY_SECONDS = 5.0


def expected_nodes(words: list[str]) -> dict[str, int]:
    """C(ADDRESS=GPUS) to address and number of GPUs."""
    return {address: int(gpus) for address, _equals, gpus in (word.partition("=") for word in words)}


def wait(
    expected: dict[str, int],
    look: Callable[[], Any],
    sleep: Callable[[float], Any] = time.sleep,
    say: Callable[[str], Any] = lambda line: None,
) -> None:
    """Returns when all nodes are there. There is no limit: a worker may be off for the weekend, and systemd can be told to stop.

    A state that a deployment calls a failure (a stranger, a wrong number of GPUs) may pass here: a node that was restarted is
    listed twice until Ray has noticed.
    """
    said = ""
    while True:
        state, explanation = ray_verdict(look(), expected)
        if state == READY:
            say(explanation)
            return
        if explanation != said:
            say(f"waiting: {explanation}")
            said = explanation
        sleep(LOOK_EVERY_SECONDS)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Wait until Ray has all planned nodes.")
    parser.add_argument("--container", default="dgxspark-ray")
    parser.add_argument("nodes", nargs="+", metavar="ADDRESS=GPUS")
    options = parser.parse_args(argv)
    wait(
        expected_nodes(options.nodes),
        lambda: ray_nodes(options.container),
        say=lambda line: sys.stderr.write(f"{line}\n"),
    )
    return 0
