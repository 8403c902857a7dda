"""What the outer machine must have: root, packages, a running Docker Engine, loop devices."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .settings import CACHE, MAX_HOSTS
from .shell import LabError, run, say, succeeds, wait_until

# program -> Debian package
PROGRAMS = {
    "docker": "docker.io",
    "dockerd": "docker.io",
    "debootstrap": "debootstrap",
    "rsync": "rsync",
    "ssh": "openssh-client",
    "mkfs.ext4": "e2fsprogs",
    "ip": "iproute2",
}
LOOP_MAJOR = 7  # Documentation/admin-guide/devices.txt of Linux


@contextmanager
def exclusive() -> Iterator[None]:
    """One lab command at a time, from whichever checkout."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another lab command is running; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def need_root() -> None:
    if os.geteuid() != 0:
        raise LabError("the lab mounts disk images and starts system containers: run it as root (sudo)")


def prepare() -> None:
    need_root()
    _install_programs()
    _start_docker()
    _make_loop_devices()


def _install_programs() -> None:
    # An engine that is already there, of whatever origin, is the one that is used.
    present = {name for name in PROGRAMS if shutil.which(name)}
    if "docker" in present and succeeds(["docker", "info"]):
        present.add("dockerd")
    packages = sorted({PROGRAMS[name] for name in PROGRAMS if name not in present})
    if not packages:
        return
    if not shutil.which("apt-get"):
        raise LabError(f"please install: {' '.join(packages)}")
    say(f"installing {' '.join(packages)}")
    environment = ["env", "DEBIAN_FRONTEND=noninteractive"]
    run([*environment, "apt-get", "update", "-q"])
    run([*environment, "apt-get", "install", "-q", "-y", "--no-install-recommends", *packages])


def _start_docker() -> None:
    if succeeds(["docker", "info"]):
        return
    if Path("/run/systemd/system").is_dir():
        run(["systemctl", "start", "docker"])
    else:
        say("starting dockerd (no systemd here)")
        with (CACHE / "dockerd.log").open("ab") as log:
            subprocess.Popen(["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    wait_until(lambda: succeeds(["docker", "info"]), 60, f"the Docker Engine answers (see {CACHE / 'dockerd.log'})")


def _make_loop_devices() -> None:
    """Two for each host, beside those that others use. Without udev nobody else makes the nodes of /dev."""
    for minor in range(2 * MAX_HOSTS + 8):
        node = Path(f"/dev/loop{minor}")
        if not node.exists():
            run(["mknod", "-m", "0660", node, "b", str(LOOP_MAJOR), str(minor)])
