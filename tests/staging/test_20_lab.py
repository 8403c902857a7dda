# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Gate 4 on the engines and disks of the lab: what is moved, what is not, and what each fault comes to."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import make_model
from lab_hosts import (
    HEAD,
    MODELS,
    WORKER,
    Run,
    Wanted,
    begin,
    build,
    end,
    forget_image,
    host_setup,
    image_of,
    lab,
    left_behind,
    on,
    push,
    stage,
    start_registry,
    stop_registry,
    wait_for,
)

MB = 1000**2
BASE, FIRST, SECOND = "lab-service:1", "staging-test:1", "staging-test:2"
FOLDER = f"{MODELS}/staging-test"
SHARD = 24 * MB
SHAPER = ["tc", "qdisc", "{}", "dev", "enp1s0f0np0", "root"]


def copy_to_head(folder: Path, target: str) -> None:
    on(HEAD, "rm", "-rf", target)
    on(HEAD, "mkdir", "-p", target)
    subprocess.run(["docker", "cp", f"{folder}/.", f"{HEAD}:{target}"], check=True, capture_output=True)


def sums(host: str, folder: str = FOLDER) -> str:
    return on(host, "sh", "-c", f"cd {folder} && find . -type f -o -type l | sort | xargs sha256sum")


@pytest.fixture(scope="module", autouse=True)
def pair() -> Iterator[None]:
    """On the head: two images that share all but their last layer, and a model."""
    host_setup()
    build(FIRST, BASE, 60, 1)
    build(SECOND, FIRST, 8, 2)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), 6, SHARD)
        copy_to_head(Path(folder), FOLDER)
    yield
    stop_registry()
    for host in (HEAD, WORKER):
        forget_image(host, FIRST, SECOND, "127.0.0.1:5000/pair:2")
        on(host, "sh", "-c", f"rm -rf {FOLDER}* /srv/models/fill /var/lib/docker/fill")


@pytest.fixture
def bare() -> None:
    """The worker has neither the images nor the model."""
    forget_image(WORKER, FIRST, SECOND)
    on(WORKER, "rm", "-rf", FOLDER)


@pytest.fixture
def slow_fabric() -> Iterator[None]:
    """About 20 MB/s from the head: time to break something."""
    words = [word.format("add") for word in SHAPER]
    on(HEAD, *words, "tbf", "rate", "160mbit", "burst", "1mb", "latency", "50ms")
    yield
    on(HEAD, *[word.format("del") for word in SHAPER], check=False)


def is_staged(image: str = FIRST) -> None:
    assert image_of(WORKER, image)
    assert image_of(WORKER, image) == image_of(HEAD, image)
    assert sums(WORKER) == sums(HEAD)
    assert left_behind() == []


def test_check_mode_says_what_would_be_moved_with_sizes(bare: None) -> None:
    run = stage(FIRST, FOLDER, check=True).ok()
    assert "lab-worker: image: 62.9 MB would be moved" in run.output
    assert "lab-worker: weights: 144.0 MB would be moved" in run.output
    assert "lab-head: image: is there already" in run.output
    assert not image_of(WORKER, FIRST)
    assert on(WORKER, "ls", FOLDER, check=False) == ""


def test_a_worker_without_internet_gets_both_and_only_what_it_lacks(bare: None) -> None:
    run = stage(FIRST, FOLDER).ok()
    is_staged()
    # The base is on every host: only the layer above it travels.
    assert 60 * MB < run.of(1)["image"]["bytes_received"] < 66 * MB
    assert 6 * SHARD < run.of(1)["weights"]["bytes_received"] < 6 * SHARD + MB
    assert "lab-worker +" in run.output
    second = stage(FIRST, FOLDER).ok()
    assert second.changed == {"lab-head": 0, "lab-worker": 0}
    assert second.of(1)["image"]["bytes_received"] == 0
    assert second.of(1)["weights"]["bytes_received"] == 0
    assert second.of(1)["weights"]["digest"] == second.of(0)["weights"]["digest"]


def test_a_small_top_layer_travels_alone() -> None:
    forget_image(WORKER, SECOND)
    run = stage(SECOND, FOLDER).ok()
    is_staged(SECOND)
    assert 8 * MB < run.of(1)["image"]["bytes_received"] < 1.1 * 8.4 * MB


def test_another_image_under_the_same_tag_is_replaced_and_named() -> None:
    on(WORKER, "docker", "tag", BASE, FIRST)
    other = image_of(WORKER, BASE).split()[0]
    run = stage(FIRST, FOLDER).ok()
    is_staged()
    assert run.of(1)["image"]["replaced"] == other


def test_the_head_pulls_what_it_lacks_and_the_worker_gets_it_meanwhile(bare: None) -> None:
    start_registry()
    remote = push(SECOND, "pair:2")
    wanted = image_of(HEAD, SECOND)
    digest = on(HEAD, "docker", "image", "inspect", "-f", "{{index .RepoDigests 0}}", SECOND, check=False).strip()
    on(HEAD, "docker", "tag", SECOND, "kept:2")
    forget_image(HEAD, SECOND, FIRST, "kept:2")
    assert not image_of(HEAD, SECOND)
    run = stage(SECOND, FOLDER, pull=(("source", remote),)).ok()
    assert image_of(HEAD, SECOND) == image_of(WORKER, SECOND) == wanted
    assert run.changed == {"lab-head": 1, "lab-worker": 1}
    assert left_behind() == [], digest
    on(HEAD, "docker", "tag", SECOND, FIRST)


def test_a_registry_without_the_image_is_named_on_both_sides(bare: None) -> None:
    start_registry()
    run = stage("nowhere:1", FOLDER, pull=(("source", "127.0.0.1:5000/nowhere:1"),))
    assert run.returncode
    assert "127.0.0.1:5000/nowhere:1 cannot be pulled: Registry 127.0.0.1:5000 does not have" in run.words


@pytest.mark.parametrize("damage", ["truncated", "missing", "index", "silent", "closed"])
def test_a_damaged_model_on_the_worker_is_repaired(damage: str) -> None:
    stage(FIRST, FOLDER).ok()
    shard = f"{FOLDER}/model-00002-of-00006.safetensors"
    script = {
        "truncated": f"truncate -s -1 {shard}",
        "missing": f"rm {shard}",
        "index": f"echo '{{}}' > {FOLDER}/model.safetensors.index.json",
        "silent": f"touch -r {shard} /tmp/t && printf X | dd of={shard} bs=1 seek=1000000 conv=notrunc && touch -r /tmp/t {shard}",
        "closed": f"chown 1000:1000 {FOLDER}/config.json {shard} && chmod 0600 {FOLDER}/config.json {shard}",
    }[damage]
    on(WORKER, "sh", "-c", script)
    run = stage(FIRST, FOLDER, more=(("staging_checksum", damage == "silent"),)).ok()
    is_staged()
    assert run.changed["lab-worker"] == 1
    found = run.of(1)["weights"]
    if damage == "closed":
        assert len(found["repaired"]) == 2
        assert on(WORKER, "stat", "-c", "%a", shard).strip() == "604"
    else:
        # Only what differs: a shard at most, and of one that is there only the blocks that differ.
        assert found["bytes_received"] < SHARD + MB


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("truncate -s -1 model-00003-of-00006.safetensors", "model-00003-of-00006.safetensors has 24000"),
        ("rm model-00003-of-00006.safetensors", "model-00003-of-00006.safetensors is missing"),
        ("sed -i s/t1/t9/ model.safetensors.index.json", "is wrong: it says that t9 is in model-00001"),
        ("rm config.json", "holds no config.json"),
    ],
)
def test_a_damaged_model_on_the_head_is_refused_and_named_on_both(script: str, words: str) -> None:
    on(HEAD, "cp", "-a", FOLDER, f"{FOLDER}-damaged")
    try:
        on(HEAD, "sh", "-c", f"cd {FOLDER}-damaged && {script}")
        run = stage(FIRST, f"{FOLDER}-damaged")
        assert run.returncode
        assert words in run.words
        assert "No source is set" in run.words
    finally:
        on(HEAD, "rm", "-rf", f"{FOLDER}-damaged")
    assert left_behind() == []


def test_a_full_docker_disk_is_named_before_anything_is_copied(bare: None) -> None:
    free = int(on(WORKER, "df", "--output=avail", "-B1", "/var/lib/docker").split()[1])
    on(WORKER, "fallocate", "-l", str(free - 50 * MB), "/var/lib/docker/fill")
    try:
        run = stage(FIRST, FOLDER)
        assert run.returncode
        assert "needs 0.1 GB in /var/lib/docker while its layers arrive" in run.words
    finally:
        on(WORKER, "rm", "-f", "/var/lib/docker/fill")
    stage(FIRST, FOLDER).ok()
    is_staged()


def test_a_model_disk_that_fills_up_in_the_middle_is_named_and_what_arrived_is_kept(
    bare: None, slow_fabric: None
) -> None:
    run = broken_by(lambda: on(WORKER, "sh", "-c", "cat /dev/zero > /srv/models/fill", check=False))
    assert run.returncode
    assert f"The disk of {FOLDER} is full" in run.words
    on(WORKER, "rm", "-f", "/srv/models/fill")
    held = int(on(WORKER, "du", "-sb", FOLDER).split()[0])
    assert held > 10 * MB
    again = stage(FIRST, FOLDER).ok()
    is_staged()
    assert again.of(1)["weights"]["bytes_received"] < 6 * SHARD - 5 * MB


def broken_by(deed: Any, arrived: int = 30 * MB) -> Run:
    """A run in whose middle something happens: after so many bytes of weights have arrived."""
    with tempfile.TemporaryDirectory() as results:
        log = Path(results) / "log"
        process = begin(Wanted(FIRST, FOLDER), results, log)
        wait_for(lambda: int((on(WORKER, "du", "-sb", FOLDER, check=False) or "0").split()[0]) > arrived)
        deed()
        return end(process, results, log)


def test_an_rsync_that_is_killed_is_started_again_in_the_same_run(bare: None, slow_fabric: None) -> None:
    run = broken_by(lambda: on(WORKER, "pkill", "-KILL", "-x", "rsync", check=False)).ok()
    is_staged()
    assert run.of(1)["weights"]["changed"]


def test_connections_that_the_head_loses_are_made_again_in_the_same_run(bare: None, slow_fabric: None) -> None:
    # The daemon stays, what it started for each stream goes.
    broken_by(lambda: on(HEAD, "sh", "-c", "pkill -KILL -P $(pgrep -o -x rsync)")).ok()
    is_staged()


def test_a_fabric_that_is_silent_for_some_seconds_is_survived(bare: None, slow_fabric: None) -> None:
    rule = ["INPUT", "-i", "enp1s0f0np0", "-p", "tcp", "--sport", "20110:20113", "-j", "DROP"]

    def cut() -> None:
        on(WORKER, "iptables", "-I", *rule)
        time.sleep(5)
        on(WORKER, "iptables", "-D", *rule)

    broken_by(cut).ok()
    is_staged()


def test_a_run_that_is_broken_off_does_not_stand_in_the_way_of_the_next(bare: None, slow_fabric: None) -> None:
    with tempfile.TemporaryDirectory() as results:
        process = begin(Wanted(FIRST, FOLDER), results, Path(results) / "log")
        wait_for(lambda: "rsync" in on(WORKER, "pgrep", "-l", "-x", "rsync", check=False))
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
    stage(FIRST, FOLDER).ok()
    is_staged()


def test_ssh_that_is_killed_ends_the_run_and_the_next_one_goes_on(bare: None, slow_fabric: None) -> None:
    def kill_ssh() -> None:
        on(WORKER, "sh", "-c", "systemctl stop ssh.service ssh.socket; pkill -KILL -x sshd", check=False)

    try:
        run = broken_by(kill_ssh)
        assert run.returncode
    finally:
        on(WORKER, "sh", "-c", "systemctl start ssh.service")
    stage(FIRST, FOLDER).ok()
    is_staged()


def test_a_head_that_is_restarted_in_the_middle(bare: None, slow_fabric: None) -> None:
    run = broken_by(lambda: subprocess.run(["docker", "restart", "-t", "1", HEAD], check=True, capture_output=True))
    assert run.returncode
    lab("up")
    held = int(on(WORKER, "du", "-sb", FOLDER).split()[0])
    assert held > 10 * MB
    wait_for(lambda: not on(WORKER, "pgrep", "-f", "AnsiballZ_model_weights", check=False), 150, 2)
    stage(FIRST, FOLDER).ok()
    is_staged()


@pytest.fixture
def hub() -> Iterator[str]:
    """The stand-in of the hub on the head's loopback, with the library's own dependencies brought by the role."""
    subprocess.run(
        ["docker", "cp", str(Path(__file__).with_name("hub_server.py")), f"{HEAD}:/tmp/hub_server.py"],
        check=True,
        capture_output=True,
    )
    script = (
        "import sys, time, pathlib; sys.path.insert(0, '/tmp'); from hub_server import Hub, HubServer;"
        f" HubServer(Hub(pathlib.Path('{FOLDER}'), token='hf_lab'), port=8899).__enter__(); time.sleep(600)"
    )
    on(HEAD, "rm", "-rf", f"{FOLDER}-hub", "/opt/dgxspark/hub")
    subprocess.run(["docker", "exec", "-d", HEAD, "python3", "-c", script], check=True)
    wait_for(lambda: ":8899 " in on(HEAD, "ss", "-Hltn"), 20)
    yield "http://127.0.0.1:8899"
    on(HEAD, "pkill", "-f", "hub_server", check=False)
    for host in (HEAD, WORKER):
        on(host, "rm", "-rf", f"{FOLDER}-hub")


def test_a_model_that_the_head_lacks_comes_from_the_hub_and_goes_on_to_the_worker(hub: str) -> None:
    source = (("staging_model_source", hub), ("staging_hub_token", "hf_lab"))
    where: dict[str, Any] = {"repository": "lab/model", "complete": False}
    refused = stage(BASE, f"{FOLDER}-hub", more=source[:1], **where)
    assert refused.returncode
    assert "does not give lab/model" in refused.words
    run = stage(BASE, f"{FOLDER}-hub", more=source, **where).ok()
    assert run.changed == {"lab-head": 1, "lab-worker": 1}
    assert "hf_lab" not in run.output
    names = on(HEAD, "ls", f"{FOLDER}-hub").split()
    assert "model-00006-of-00006.safetensors" in names
    expected = on(HEAD, "sh", "-c", f"cd {FOLDER} && sha256sum *")
    for host in (HEAD, WORKER):
        assert on(host, "sh", "-c", f"cd {FOLDER}-hub && sha256sum *") == expected
    assert left_behind() == []
