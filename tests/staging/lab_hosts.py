# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hosts of the lab (docs/lab.md) for tests and the benchmark of staging."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
INVENTORY = "inventories/lab_inventory"
HEAD, WORKER = "spark-head", "spark-worker"
FABRIC = "192.168.240"
MODELS = "/srv/models"
REGISTRY = "127.0.0.1:5000"
_SERVING = "/usr/local/bin/docker-registry"
LIMIT_SECONDS = 900


def container(number: int) -> str:
    return HEAD if number == 0 else WORKER + (str(number) if number > 1 else "")


def inventory_name(number: int) -> str:
    return "lab-head" if number == 0 else "lab-worker" + (str(number) if number > 1 else "")


def on(host: str, *command: str, check: bool = True, stdin: str | None = None) -> str:
    """Run a command as root of a lab host, not through Ansible."""
    words = ["docker", "exec", *(["-i"] if stdin is not None else []), host, *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, input=stdin)
    if check and done.returncode:
        raise AssertionError(f"{command} on {host}: {done.stderr or done.stdout}")
    return done.stdout


@dataclass(frozen=True)
class Run:
    """A finished run. results: of each host by its inventory name; seconds: of the task alone."""

    returncode: int
    output: str
    results: dict[str, dict[str, Any]]

    def of(self, number: int) -> dict[str, Any]:
        return self.results[inventory_name(number)]

    @property
    def words(self) -> str:
        return " ".join(self.output.split())

    @property
    def changed(self) -> dict[str, int]:
        return {name: int(count) for name, count in re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", self.output, re.M)}

    def ok(self) -> Run:
        if self.returncode:
            raise AssertionError(self.output[-4000:])
        return self


@dataclass(frozen=True)
class Wanted:
    image: str
    folder: str
    hosts: int = 2
    pull: tuple[tuple[str, str], ...] = ()
    check: bool = False
    more: tuple[tuple[str, Any], ...] = ()
    repository: str = ""
    complete: bool = True


def command(wanted: Wanted, results: str) -> list[str]:
    hosts = [
        {
            "name": inventory_name(number),
            "role": "head" if number == 0 else "worker",
            "control_address": f"{FABRIC}.{12 + number}",
        }
        for number in range(wanted.hosts)
    ]
    values = {
        "stage_hosts": hosts,
        "stage_model": {"folder": wanted.folder, "repository": wanted.repository, "complete": wanted.complete},
        "stage_image": wanted.image,
        "stage_pull": dict(wanted.pull),
        "stage_results": results,
        **dict(wanted.more),
    }
    names = ",".join(str(host["name"]) for host in hosts)
    more = ["-i", ".lab/more_hosts.yml"] if wanted.hosts > 2 else []
    check = ["--check"] if wanted.check else []
    return [
        *("ansible-playbook", "tests/staging/stage.yml", "-i", INVENTORY, *more, "-l", names, *check),
        *("-e", json.dumps(values)),
    ]


def begin(wanted: Wanted, results: str, log: Path) -> subprocess.Popen[bytes]:
    with open(log, "wb") as output:
        return subprocess.Popen(command(wanted, results), cwd=CHECKOUT, stdout=output, stderr=subprocess.STDOUT)


def end(process: subprocess.Popen[bytes], results: str, log: Path) -> Run:
    process.wait(timeout=LIMIT_SECONDS)
    found = {path.stem: json.loads(path.read_text()) for path in Path(results).glob("*.json")}
    text = log.read_text(errors="replace")
    # However it ends, a user reads words.
    assert "Traceback" not in text, text[-4000:]
    return Run(process.returncode, text, found)


def stage(image: str, folder: str, **values: Any) -> Run:
    """Gate 4 on the lab."""
    with tempfile.TemporaryDirectory() as results:
        log = Path(results) / "log"
        return end(begin(Wanted(image, folder, **values), results, log), results, log)


def wait_for(condition: Any, seconds: float = 60, pause: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(pause)


def image_of(host: str, name: str) -> str:
    """Id and layers of an image of a host's engine; empty when it has none."""
    found = on(host, "docker", "image", "inspect", "-f", "{{.Id}} {{json .RootFS.Layers}}", name, check=False).strip()
    return "" if found == "[]" else found


def forget_image(host: str, *names: str) -> None:
    for name in names:
        on(host, "docker", "image", "rm", "-f", name, check=False)


def build(name: str, parent: str, megabytes: int, seed: int) -> None:
    """On the head: an image of a parent and one layer of noise."""
    script = (
        "rm -rf /tmp/build && mkdir /tmp/build && cd /tmp/build"
        f" && head -c {megabytes}M /dev/urandom > noise && printf 'FROM {parent}\\nCOPY noise /opt/noise{seed}\\n' > Dockerfile"
        f" && docker build -q -t {name} . && rm -rf /tmp/build"
    )
    on(HEAD, "sh", "-c", script)


def start_registry() -> None:
    """Debian's docker-registry on the head's loopback: a registry that only the head reaches."""
    if on(HEAD, "pgrep", "docker-registry", check=False):
        return
    subprocess.run(["docker", "cp", "/usr/bin/docker-registry", f"{HEAD}:{_SERVING}"], check=True, capture_output=True)
    config = f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: /var/lib/docker/lab-registry}}}}\nhttp: {{addr: '{REGISTRY}'}}\n"
    on(HEAD, "sh", "-c", "cat > /etc/lab/registry.yml", stdin=config)
    subprocess.run(["docker", "exec", "-d", HEAD, _SERVING, "serve", "/etc/lab/registry.yml"], check=True)
    wait_for(lambda: f"{REGISTRY} " in on(HEAD, "ss", "-Hltn"), 20)


def stop_registry() -> None:
    on(HEAD, "pkill", "-x", "docker-registry", check=False)
    on(HEAD, "rm", "-rf", "/var/lib/docker/lab-registry")


def push(image: str, name: str) -> str:
    """Push an image of the head to its registry; returns the reference."""
    remote = f"{REGISTRY}/{name}"
    on(HEAD, "docker", "tag", image, remote)
    on(HEAD, "docker", "push", "-q", remote)
    on(HEAD, "docker", "image", "rm", remote)
    return remote


def lab(*arguments: str) -> None:
    subprocess.run([sys.executable, "tests/lab/lab.py", *arguments], cwd=CHECKOUT, check=True, capture_output=True)


def host_setup() -> None:
    """The libraries that gate 0 brings."""
    command = ["ansible-playbook", "playbooks/host_setup.yml", "-i", INVENTORY]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)


def left_behind(hosts: int = 2) -> list[str]:
    """What a run must not leave: listening ports, rsync, progress files, spooled layers, partial files."""
    found = []
    for number in range(hosts):
        host = container(number)
        listening = on(host, "ss", "-Hltn")
        found += [f"{host} listens on {port}" for port in (20110, 20111, 20113) if f":{port} " in listening]
        found += [f"{host} {line}" for line in on(host, "pgrep", "-a", "rsync", check=False).splitlines()]
        script = "ls /run/dgxspark/staging /var/lib/dgxspark/cache/images 2>/dev/null; find /srv/models -name .partial -o -name .incoming"
        names = on(host, "sh", "-c", script, check=False).split()
        found += [f"{host} {name}" for name in names if not name.endswith(":")]
    return found
