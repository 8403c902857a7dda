# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How fast images and weights get to the other hosts, as ratios within one run on the lab (make bench). Ends with 1 when one does not
hold.

The yardstick of an image is what people do by hand: docker save to a file, scp, docker load. It and every other figure are measured
between the same hosts. With an argument only those parts are run: image, hosts, registry, weights.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "staging"))
import lab_hosts
from conftest import make_model
from lab_hosts import HEAD, MODELS, WORKER, build, container, forget_image, image_of, on, push, stage

IMAGE, TOP, ALONE = "vllm-node:0.32", "staging-bench:top", "staging-bench:alone"
TOP_MB, ALONE_MB = 20, 600
SMALL = "lab-service:1"
# Real hosts have CPUs of their own. Those of the lab share two cores, and an engine alone uses 1.6 of them while it unpacks: where the
# number of hosts is what is compared, each host gets the same share in both measurements. Shares in hundredths of a core.
HEAD_SHARE, WORKER_SHARE = 60, 40
# Several GB, so that what a copy costs is not its beginning. On the disk that has the room.
SHARDS, SHARD_MB = 37, 60
ROUNDS = 3
FOLDER = f"{MODELS}/bench"
WEIGHTS = "/var/lib/docker/bench-model"
# The promises.
TOP_LAYER, TOP_BYTES, WHOLE, THREE_HOSTS, PULLED, WEIGHTS_RATE, WEIGHTS_AGAIN = 0.1, 1.1, 0.8, 1.5, 1.3, 0.9, 2.0


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def judged(text: str, found: float, promise: float, at_least: bool = False) -> bool:
    holds = found >= promise if at_least else found <= promise
    print(
        f"{text:62} {found:6.2f} ({'>=' if at_least else '<='} {promise}) {'holds' if holds else 'DOES NOT HOLD'}",
        flush=True,
    )
    return holds


def yardstick() -> float:
    """docker save to a file, scp, docker load. The files lie where Docker does: the disk that has the room."""
    path = "/var/lib/docker/yardstick.tar"
    pipe = f"docker exec {HEAD} cat {path} | docker exec -i {WORKER} sh -c 'cat > {path}'"
    taken = [
        seconds(lambda: on(HEAD, "docker", "save", "-o", path, IMAGE)),
        seconds(lambda: subprocess.run(["sh", "-c", pipe], check=True)),
        seconds(lambda: on(WORKER, "docker", "load", "-q", "-i", path)),
    ]
    for host in (HEAD, WORKER):
        on(host, "rm", path)
    print("yardstick: save {:.1f} s, copy {:.1f} s, load {:.1f} s".format(*taken), flush=True)
    return sum(taken)


def forget(*names: str) -> None:
    for number in (1, 2, 3):
        forget_image(container(number), *names)


def staged(image: str, hosts: int = 2, pull: tuple[tuple[str, str], ...] = ()) -> float:
    """Seconds of the task alone, of its slowest host."""
    run = stage(image, FOLDER, hosts=hosts, pull=pull).ok()
    return max(float(result["seconds"]) for result in run.results.values())


def image_part() -> list[bool]:
    forget(IMAGE, TOP)
    base = yardstick()
    forget(IMAGE)
    one = staged(IMAGE)
    build(TOP, IMAGE, TOP_MB, 1)
    run = stage(TOP, FOLDER).ok()
    top, moved = float(run.of(1)["seconds"]), int(run.of(1)["image"]["bytes_received"])
    again = stage(TOP, FOLDER).ok().of(1)["image"]["bytes_received"]
    print(f"one host {one:.1f} s, a top layer of {moved / 1e6:.1f} MB {top:.1f} s", flush=True)
    layer = TOP_MB * 1024**2
    return [
        judged("a complete image, of the yardstick", one / base, WHOLE),
        judged("a small top layer, of the yardstick", top / base, TOP_LAYER),
        judged("bytes for it, of the layer", moved / layer, TOP_BYTES),
        judged("bytes of a second run", float(again), 0),
    ]


def set_shares(head: int, worker: int) -> None:
    """Hundredths of a core for each host; below zero: no limit."""
    for number in range(4):
        share = worker if number else head
        quota = str(share * 1000 if share > 0 else -1)
        limits = ["--cpu-period", "100000", "--cpu-quota", quota]
        subprocess.run(["docker", "update", *limits, container(number)], check=True, capture_output=True)


def hosts_part() -> list[bool]:
    """Does the head serve three hosts in the time of one?"""
    build(ALONE, SMALL, ALONE_MB, 2)
    set_shares(HEAD_SHARE, WORKER_SHARE)
    try:
        forget(ALONE)
        one = staged(ALONE)
        forget(ALONE)
        three = staged(ALONE, hosts=4)
    finally:
        set_shares(-1, -1)
    print(f"{ALONE_MB} MiB to one host {one:.1f} s, to three at once {three:.1f} s", flush=True)
    return [judged("three hosts at once, of one host", three / one, THREE_HOSTS)]


def registry_part() -> list[bool]:
    """The head pulls from a registry; when does it have the image, and when do the others?"""
    lab_hosts.start_registry()
    kept = "kept:bench"
    try:
        remote = push(IMAGE, "bench:1")
        on(HEAD, "docker", "tag", IMAGE, kept)
        forget_image(HEAD, IMAGE, TOP, kept)
        forget(IMAGE, TOP)
        with tempfile.TemporaryDirectory() as results:
            log = Path(results) / "log"
            process = lab_hosts.begin(lab_hosts.Wanted(IMAGE, FOLDER, pull=(("source", remote),)), results, log)
            began, seen = time.monotonic(), dict[str, float]()
            while process.poll() is None:
                for host in (HEAD, WORKER):
                    if host not in seen and image_of(host, IMAGE):
                        seen[host] = time.monotonic() - began
                time.sleep(0.2)
            lab_hosts.end(process, results, log).ok()
        for host in (HEAD, WORKER):
            seen.setdefault(host, time.monotonic() - began)
    finally:
        lab_hosts.stop_registry()
    print(f"pulled: the head has it after {seen[HEAD]:.1f} s, the worker after {seen[WORKER]:.1f} s", flush=True)
    return [judged("an image from a registry: the worker, of the head", seen[WORKER] / seen[HEAD], PULLED)]


def plain_copies(total: int) -> float:
    """The best rate of a plain rsync daemon and of tar through a pipe, in bytes a second."""
    config = f"uid = root\ngid = root\nuse chroot = no\n[m]\npath = {WEIGHTS}\nread only = yes\n"
    on(HEAD, "sh", "-c", "cat > /tmp/rsyncd.conf", stdin=config)
    subprocess.run(
        ["docker", "exec", "-d", HEAD, "rsync", "--daemon", "--no-detach", "--config=/tmp/rsyncd.conf", "--port=20119"],
        check=True,
    )
    lab_hosts.wait_for(lambda: ":20119 " in on(HEAD, "ss", "-Hltn"), 10)
    target = f"{WEIGHTS}-plain"
    address = f"{lab_hosts.FABRIC}.12"
    rsync = seconds(lambda: on(WORKER, "rsync", "-a", f"rsync://{address}:20119/m/", f"{target}/"))
    on(WORKER, "rm", "-rf", target)
    on(HEAD, "pkill", "-f", "port=20119", check=False)
    pipe = f"docker exec {HEAD} tar -C {WEIGHTS} -c . | docker exec -i {WORKER} sh -c 'mkdir {target} && tar -C {target} -x'"
    tar = seconds(lambda: subprocess.run(["sh", "-c", pipe], check=True))
    on(WORKER, "rm", "-rf", target)
    print(f"plain rsync {total / rsync / 1e6:.0f} MB/s, tar through a pipe {total / tar / 1e6:.0f} MB/s", flush=True)
    return total / min(rsync, tar)


def weights_part() -> list[bool]:
    on(HEAD, "rm", "-rf", WEIGHTS)
    on(HEAD, "mkdir", "-p", WEIGHTS)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), SHARDS, SHARD_MB * 1000**2)
        subprocess.run(["docker", "cp", f"{folder}/.", f"{HEAD}:{WEIGHTS}"], check=True, capture_output=True)
    total = SHARDS * SHARD_MB * 1000**2
    plain = rate = 0.0
    # In turns, the best of each: what else the machine does hits both.
    for _round in range(ROUNDS):
        plain = max(plain, plain_copies(total))
        on(WORKER, "rm", "-rf", WEIGHTS)
        run = stage(SMALL, WEIGHTS).ok()
        rate = max(rate, total / float(run.of(1)["weights"]["copy_seconds"]))
    again = stage(SMALL, WEIGHTS).ok()
    second = float(again.of(1)["weights"]["seconds"])
    print(f"staged at {rate / 1e6:.0f} MB/s; a second run of {SHARDS + 2} files {second:.2f} s", flush=True)
    return [
        judged("weights, of the best plain copy's rate", rate / plain, WEIGHTS_RATE, at_least=True),
        judged("a second run of the weights, seconds", second, WEIGHTS_AGAIN),
    ]


PARTS = {"image": image_part, "hosts": hosts_part, "registry": registry_part, "weights": weights_part}


def main() -> int:
    wanted = sys.argv[1:] or list(PARTS)
    try:
        # What is measured is not the model: a small one that all hosts have.
        if wanted != ["weights"]:
            # The firewall of a deployment that was there knows no third host.
            lab_hosts.lab("reset")
            lab_hosts.lab("up", "--hosts", "4")
            lab_hosts.host_setup()
            with tempfile.TemporaryDirectory() as folder:
                make_model(Path(folder), 1, 1000)
                for number in range(4):
                    target = f"{container(number)}:{FOLDER}"
                    on(container(number), "sh", "-c", f"rm -rf {FOLDER}; mkdir -p {FOLDER}")
                    subprocess.run(["docker", "cp", f"{folder}/.", target], check=True, capture_output=True)
        holds = [judgement for name in wanted for judgement in PARTS[name]()]
    finally:
        forget(IMAGE, TOP, ALONE)
        forget_image(HEAD, TOP, ALONE)
        for number in range(4):
            on(container(number), "rm", "-rf", FOLDER, WEIGHTS, check=False)
        # The image that the head had: a part that failed may have left none.
        lab_hosts.lab("up")
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
