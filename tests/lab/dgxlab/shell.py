"""Run commands of the outer machine and say clearly which one failed."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
STARTED = time.monotonic()


class LabError(Exception):
    """The lab cannot go on; the message says why."""


def say(message: str) -> None:
    print(f"[{time.monotonic() - STARTED:6.1f}s] {message}", file=sys.stderr, flush=True)


def run(
    command: Sequence[str | Path], *, stdin: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    try:
        result = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} is not installed") from error
    if check and result.returncode:
        said = (result.stderr or result.stdout).strip()[-2000:]
        raise LabError(f"{shlex.join(words)[:400]} ended with {result.returncode}: {said}")
    return result


def output(command: Sequence[str | Path]) -> str:
    return run(command).stdout.strip()


def succeeds(command: Sequence[str | Path]) -> bool:
    return run(command, check=False).returncode == 0


def docker(*words: str | Path, stdin: str | None = None) -> str:
    return run(["docker", *words], stdin=stdin).stdout.strip()


def inside(container: str, *words: str, stdin: str | None = None) -> str:
    """Run a command as root inside a lab host."""
    return docker("exec", *(["-i"] if stdin is not None else []), container, *words, stdin=stdin)


def pipe(source: Sequence[str], target: Sequence[str]) -> str:
    """`source | target`; returns what the target printed."""
    with subprocess.Popen(source, stdout=subprocess.PIPE) as writer:
        reader = subprocess.run(target, stdin=writer.stdout, capture_output=True, text=True, check=False)
        if writer.stdout:
            writer.stdout.close()
        if writer.wait() or reader.returncode:
            raise LabError(f"{shlex.join(source)} | {shlex.join(target)} failed: {reader.stderr.strip()[-1000:]}")
    return reader.stdout


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(work, items))


def wait_until(condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.2) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {seconds:.0f} s")
        time.sleep(pause)


def content_hash(*parts: Path | str) -> str:
    """A short name for exactly these files (with their relative names) and strings."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode() + b"\0")
            continue
        files = [part] if part.is_file() else sorted(p for p in part.rglob("*") if p.is_file())
        for file in files:
            name = file.relative_to(part.parent)
            # What tools leave behind (.mypy_cache, __pycache__) differs between checkouts of the same files.
            if not any(word.startswith((".", "__pycache__")) for word in name.parts):
                digest.update(str(name).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
