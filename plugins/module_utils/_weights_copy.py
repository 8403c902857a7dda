# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files from the head to another host with rsync: a daemon for the time of the task, several streams, only what differs.

PRIVATE to this collection. A file that is not complete never has its final name: it lies in C(.partial), and a later run goes
on with it, also after the receiving host lost its power.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from ansible_collections.dgxspark.serving.plugins.module_utils._listeners import listeners
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import (
    INCOMING_FOLDER,
    NOT_OF_THE_MODEL,
    PARTIAL_FOLDER,
    ModelFolderError,
)

RSYNC_USER = "dgxspark"
RSYNC_MODULE = "model"
# It starts in milliseconds; a loaded host may need longer.
DAEMON_START_SECONDS = 10
DAEMON_AGAIN_SECONDS = 0.5
# One stream fills no link of 200 Gbit/s; on a Spark four do what its disk can.
STREAMS = 4
# Seconds without a byte, after which rsync gives up a connection.
IO_TIMEOUT_SECONDS = 60
# rsync(1), EXIT VALUES: the connection, not the files: protocol, socket, stream, signal, timeouts.
_CONNECTION_CODES = (5, 10, 12, 20, 30, 35)
TRIES = 4
PAUSE_SECONDS = 2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_DISK_FULL = "No space left on device"
_RECEIVED = re.compile(r"^Total bytes received: ([\d,.]+)", re.MULTILINE)
# Keeps a folder of partial files where it is.
_HELD = ".held"
# rsync writes to NAME.XXXXXX in a folder of its own, to .NAME.XXXXXX otherwise, and renames.
_UNFINISHED = re.compile(r"\.?(?P<name>.+)\.[A-Za-z0-9]{6}")


@dataclass(frozen=True)
class Entry:
    """A file or link below the copied folder. link: target, empty for a file; mtime: whole seconds."""

    path: str
    size: int
    mtime: int
    link: str = ""

    def is_at(self, root: str) -> bool:
        place = os.path.join(root, self.path)
        try:
            status = os.lstat(place)
        except OSError:
            return False
        if self.link:
            return os.path.islink(place) and os.readlink(place) == self.link
        return not os.path.islink(place) and (status.st_size, int(status.st_mtime)) == (self.size, self.mtime)


def _entry(root: str, path: str) -> Entry:
    place = os.path.join(root, path)
    status = os.lstat(place)
    link = os.readlink(place) if os.path.islink(place) else ""
    return Entry(path, 0 if link else status.st_size, int(status.st_mtime), link)


def entries_of(mount: str, folder: str) -> list[Entry]:
    """What makes up the model: the files of its folder, and the blobs that its links lead to within C(mount)."""
    found: dict[str, Entry] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in NOT_OF_THE_MODEL]
        for name in names:
            entry = _entry(mount, os.path.relpath(os.path.join(parent, name), mount))
            found[entry.path] = entry
            if entry.link:
                real = os.path.relpath(os.path.realpath(os.path.join(parent, name)), os.path.realpath(mount))
                if real.startswith("..") or os.path.isabs(entry.link):
                    raise ModelFolderError(
                        f"{parent}/{name} is a link to {entry.link}, out of {mount}: it would lead nowhere on another host. Put the file "
                        "there instead of the link."
                    )
                found[real] = _entry(mount, real)
    return [found[path] for path in sorted(found)]


def shares(entries: Sequence[Entry], streams: int = STREAMS) -> list[list[Entry]]:
    """The entries for each stream, about the same number of bytes each."""
    parts: list[list[Entry]] = [[] for _stream in range(max(1, min(streams, len(entries))))]
    sizes = [0] * len(parts)
    for entry in sorted(entries, key=lambda entry: -entry.size):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(entry)
        sizes[smallest] += entry.size
    return parts


@contextmanager
def rsync_daemon(folder: str, address: str, port: int, token: str, clients: Sequence[str]) -> Iterator[None]:
    """An rsync daemon that offers one folder, read-only, to the given addresses and to who knows the token."""
    with tempfile.TemporaryDirectory(prefix="dgxspark-rsync-") as scratch:
        secrets_path, config_path = f"{scratch}/secrets", f"{scratch}/rsyncd.conf"
        for path, content in (
            (secrets_path, f"{RSYNC_USER}:{token}\n"),
            (
                config_path,
                # A fabric has no name server: each connection would wait for an answer that does not come.
                f"uid = root\ngid = root\nuse chroot = no\nmunge symlinks = no\nreverse lookup = no\naddress = {address}\nport = {port}\n"
                f"[{RSYNC_MODULE}]\npath = {folder}\nread only = yes\nauth users = {RSYNC_USER}\n"
                f"secrets file = {secrets_path}\nhosts allow = {' '.join(clients)}\nexclude = {PARTIAL_FOLDER} {INCOMING_FOLDER}\n",
            ),
        ):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as handle:
                handle.write(content)
        log = open(f"{scratch}/log", "w+", encoding="utf-8")  # noqa: SIM115 - lives as long as the daemon
        process = None
        try:
            process = _listening_daemon(config_path, f"{address}:{port}", log)
            yield
        finally:
            if process:
                process.terminate()
                process.wait()
            log.close()


def _listening_daemon(config_path: str, place: str, log: IO[str]) -> subprocess.Popen[bytes]:
    """Start the daemon, again while its port is still held. Raises ModelFolderError."""
    deadline, port = time.monotonic() + DAEMON_START_SECONDS, int(place.rpartition(":")[2])
    process = _start_daemon(config_path, log)
    while not _listens(process, port):
        if process.poll() is not None:
            if time.monotonic() > deadline:
                break
            time.sleep(DAEMON_AGAIN_SECONDS)
            process = _start_daemon(config_path, log)
        elif time.monotonic() > deadline:
            break
        time.sleep(0.05)
    else:
        return process
    process.terminate()
    process.wait()
    log.seek(0)
    # The last line only names the exit code.
    words = "; ".join(log.read().strip().splitlines()[-2:])
    raise ModelFolderError(f"The rsync daemon for the weights does not listen at {place}: {words or 'it said nothing'}")


def _start_daemon(config_path: str, log: IO[str]) -> subprocess.Popen[bytes]:
    try:
        # Runs beside others, and ends with this process: not for run_command.
        return subprocess.Popen(  # pylint: disable=ansible-bad-function
            ["rsync", "--daemon", "--no-detach", f"--config={config_path}", "--log-file=/dev/stderr"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_end_with_parent,
        )
    except FileNotFoundError as error:
        raise ModelFolderError(
            "rsync is not installed on the head; it offers the weights to the workers. Install package rsync."
        ) from error


def _end_with_parent() -> None:
    """Whatever ends the module ends what it started: a daemon must not outlive a module that was killed (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Whether this very process does. The daemon of a run that was broken off may hold the port for some moments."""
    return any(entry.pid == process.pid for entry in listeners([port]))


def partial_bytes(root: str) -> int:
    """What has arrived of files that are not complete."""
    total = 0
    for folder, _folders, names in os.walk(root):
        if os.path.basename(folder) in (PARTIAL_FOLDER, INCOMING_FOLDER):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    continue
    return total


def arrived_bytes(root: str, wanted: Sequence[Entry]) -> int:
    """How far the copy of these files is."""
    done = sum(entry.size for entry in wanted if not entry.link and entry.is_at(root))
    return done + partial_bytes(root)


def keep_unfinished(root: str, wanted: Sequence[Entry]) -> None:
    """Where rsync was killed without a chance to tidy up, let the next one go on with what had arrived."""
    scratch = os.path.join(root, INCOMING_FOLDER)
    if not os.path.isdir(scratch):
        return
    folders = {os.path.basename(entry.path): os.path.dirname(entry.path) for entry in wanted}
    for name in os.listdir(scratch):
        found = _UNFINISHED.fullmatch(name)
        if not found:
            continue
        path = os.path.join(scratch, name)
        if found["name"] not in folders:
            os.unlink(path)
            continue
        kept = os.path.join(root, folders[found["name"]], PARTIAL_FOLDER, found["name"])
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        if not os.path.exists(kept) or os.path.getsize(kept) < os.path.getsize(path):
            os.replace(path, kept)
        else:
            os.unlink(path)


def _hold_partial_folders(root: str, wanted: Sequence[Entry]) -> None:
    """Have the folders of partial files before the copy, with a file in them, so that rsync does not remove them in between.

    rsync makes one when a file breaks off. On a disk that is full it cannot, and throws away what has arrived.
    """
    for folder in {os.path.dirname(entry.path) for entry in wanted}:
        held = os.path.join(root, folder, PARTIAL_FOLDER)
        os.makedirs(held, mode=0o755, exist_ok=True)
        with open(os.path.join(held, _HELD), "wb"):
            pass


def copy(root: str, address: str, port: int, token: str, wanted: Sequence[Entry]) -> int:
    """Bring these files from the head's daemon into C(root). Returns the bytes received. Raises ModelFolderError."""
    os.makedirs(os.path.join(root, INCOMING_FOLDER), mode=0o755, exist_ok=True)
    _hold_partial_folders(root, wanted)
    source = f"rsync://{RSYNC_USER}@{address}:{port}/{RSYNC_MODULE}/"
    environment = {**os.environ, "RSYNC_PASSWORD": token}
    # Files first: a link must not lead to a blob that is not there.
    received = _streams(root, source, environment, shares([entry for entry in wanted if not entry.link]))
    links = [entry for entry in wanted if entry.link]
    received += _streams(root, source, environment, [links] if links else [])
    _remove_scratch(root)
    return received


def copy_local(source: str, root: str, wanted: Sequence[Entry]) -> None:
    """The same from another folder of this host, such as a mounted share."""
    os.makedirs(os.path.join(root, INCOMING_FOLDER), mode=0o755, exist_ok=True)
    _hold_partial_folders(root, wanted)
    _streams(root, f"{source.rstrip('/')}/", dict(os.environ), shares(wanted, 1), ["--copy-links"])
    _remove_scratch(root)


def _remove_scratch(root: str) -> None:
    for folder, folders, names in os.walk(root, topdown=False):
        if os.path.basename(folder) in (PARTIAL_FOLDER, INCOMING_FOLDER) and not folders and set(names) <= {_HELD}:
            for name in names:
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)


def _streams(
    root: str,
    source: str,
    environment: Mapping[str, str],
    parts: Sequence[Sequence[Entry]],
    options: Sequence[str] = ("--links",),
) -> int:
    """One rsync for each part at the same time; those whose connection broke are started again."""
    received, waiting = 0, [part for part in parts if part]
    for attempt in range(TRIES):
        keep_unfinished(root, [entry for part in parts for entry in part])
        runs = [(part, _start(root, source, environment, part, options)) for part in waiting]
        waiting, words, final = [], "", False
        for part, process in runs:
            output, complaints = process.communicate()
            found = _RECEIVED.search(output)
            received += int(re.sub(r"\D", "", found[1])) if found else 0
            if process.returncode:
                waiting.append(part)
                words = complaints.strip()
                # Negative: killed by somebody.
                passing = process.returncode < 0 or process.returncode in _CONNECTION_CODES
                final = final or not passing or _DISK_FULL in words
        if not waiting:
            return received
        if final or attempt == TRIES - 1:
            raise ModelFolderError(_explained(root, words))
        time.sleep(PAUSE_SECONDS * 2**attempt)
    return received


def _start(
    root: str, source: str, environment: Mapping[str, str], part: Sequence[Entry], options: Sequence[str]
) -> subprocess.Popen[str]:
    command = [
        *("rsync", "--times", "--perms", "--chmod=D0755,F0644", *options),
        *("--files-from=-", "--from0", "--stats", f"--timeout={IO_TIMEOUT_SECONDS}"),
        # A file goes to its name when it is complete; what is cut off is kept beside it and gone on with.
        *(f"--partial-dir={PARTIAL_FOLDER}", f"--temp-dir={os.path.join(root, INCOMING_FOLDER)}"),
        *(source, f"{root}/"),
    ]
    try:
        # Runs beside others, and ends with this process: not for run_command.
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "LC_ALL": "C"},
            preexec_fn=_end_with_parent,
        )
    except FileNotFoundError as error:
        raise ModelFolderError(
            "rsync is not installed on this host; it brings the weights from the head. Install package rsync."
        ) from error
    if process.stdin:
        process.stdin.write("".join(f"{entry.path}\0" for entry in part))
        process.stdin.close()
        process.stdin = None
    return process


def _explained(root: str, words: str) -> str:
    lines = words.splitlines()
    if _DISK_FULL in words:
        return f"The disk of {root} is full. Make room and run again: what has arrived is kept and gone on with."
    reason = next((line for line in lines if "error" in line or "failed" in line), lines[-1] if lines else "no output")
    return f"rsync from the head failed: {reason} Run again: what has arrived is kept and gone on with."
