"""What a deployment costs beside what it waits for, in pings of the same hosts: tests/bench/overhead.py. Needs the lab to be up.

What it waits for (the run's own log says it): Ray's nodes, the engine's start, the program of the trial, released memory. Both promises
are on hosts that have image and weights already. Ends with 1 when one does not hold.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
INVENTORY = "inventories/lab_inventory"
RUNS = Path("~/.cache/dgxspark/runs").expanduser()
PINGS = 5
# The promises, in pings.
DEPLOYMENT, NOTHING_TO_DO = 20.0, 12.0


def seconds_of(*command: str) -> float:
    began = time.monotonic()
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    return time.monotonic() - began


def deployed(name: str) -> float:
    """Seconds of a deployment without what it waited for."""
    whole = seconds_of("ansible-playbook", "deploy_qwen35.yml", "-i", INVENTORY)
    figures = json.loads((max(RUNS.iterdir()) / "summary.json").read_text(encoding="utf-8"))
    gates = ", ".join(f"{gate['number']}: {gate['seconds']}" for gate in figures["gates"])
    own = whole - sum(figures["waits"].values())
    print(f"{name:28} {whole:6.1f} s, own {own:5.1f} s, waits {figures['waits']}, gates {gates}", flush=True)
    return own


def main() -> int:
    ping = ("ansible", "spark", "-i", INVENTORY, "-m", "ping")
    # Stages what is to be staged, and takes the deployment down again: the hosts of the promise.
    deployed("first (stages)")
    seconds_of("ansible-playbook", "playbooks/teardown.yml", "-i", INVENTORY)
    deployment = deployed("staged")
    nothing = deployed("nothing to do")
    seconds_of(*ping)
    pings = [seconds_of(*ping) for _number in range(PINGS)]
    one = statistics.median(pings)
    print(f"ping {one:.2f} s ({', '.join(f'{value:.2f}' for value in pings)})")
    ratios = (("a deployment", deployment / one, DEPLOYMENT), ("nothing to do", nothing / one, NOTHING_TO_DO))
    for text, found, promise in ratios:
        print(f"{text:28} {found:5.1f} pings (<= {promise:g}) {'holds' if found <= promise else 'DOES NOT HOLD'}")
    return int(any(found > promise for _text, found, promise in ratios))


if __name__ == "__main__":
    sys.exit(main())
