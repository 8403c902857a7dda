"""How long playbooks/preflight.yml takes, in pings: both on the same hosts, in turns. Needs the lab to be up and healthy.

tests/bench/preflight.py [INVENTORY [ROUNDS]] prints the ratio of the medians and ends with 1 when it is above the target.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
INVENTORY = "inventories/lab_inventory"
ROUNDS = 5
# Preflight of two hosts takes at most so many times one ansible -m ping of the same hosts.
TARGET = 6.0


def seconds_of(*command: str) -> float:
    began = time.monotonic()
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.monotonic() - began


def main() -> int:
    inventory = sys.argv[1] if len(sys.argv) > 1 else INVENTORY
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    ping = ("ansible", "spark", "-i", inventory, "-m", "ping")
    preflight = ("ansible-playbook", "playbooks/preflight.yml", "-i", inventory)
    # The first connection of each is not measured: SSH keeps it open.
    seconds_of(*ping)
    seconds_of(*preflight)
    pings, preflights = [], []
    for _round in range(rounds):
        pings.append(seconds_of(*ping))
        preflights.append(seconds_of(*preflight))
    one, whole = statistics.median(pings), statistics.median(preflights)
    print(f"ping       {one:.2f} s  ({', '.join(f'{value:.2f}' for value in pings)})")
    print(f"preflight  {whole:.2f} s  ({', '.join(f'{value:.2f}' for value in preflights)})")
    print(f"ratio      {whole / one:.1f}  (at most {TARGET:g})")
    return int(whole / one > TARGET)


if __name__ == "__main__":
    sys.exit(main())
