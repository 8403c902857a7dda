# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The canary: does the engine still answer? One token is asked for, because /health says 200 while a rank is dead.

A timer of the head calls it. After several failures in a row it starts Ray on the head (where there is Ray) and the engine again, once
and in order through systemd; if that does not help it gives up and says so. It leaves an engine alone that starts, that is busy, or that
somebody else is at work on.

PRIVATE to this collection. Standard library only, it is a host program.
"""

from __future__ import annotations

import argparse
import calendar
import http.client
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._files import write_file
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_lease import lease_file
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import RESTORE_FOLDER

PROGRAM = "dgxspark-canary"
STATE_FILE = "/var/lib/dgxspark/state/canary.json"
KEY_FILE = "/etc/dgxspark/api-key"
# While a run of the collection is at work on the host it holds this file.
LEASE_FILE = lease_file(RESTORE_FOLDER)
RAY_UNIT, ENGINE_UNIT = "dgxspark-ray.service", "dgxspark-vllm.service"
ENGINE_CONTAINER = "dgxspark-vllm"

# One token of an idle engine takes less than a second; 61 s were measured until vLLM itself notices a rank that is gone.
TIMEOUT_SECONDS = 20.0
FAILURES = 2
# A prompt of a single token is a case of its own in some kernels: vLLM 0.32 for CPUs dies of it ("expect x to be transposed").
PROMPT = "What is 2+2?"
# A first start with cold caches of compilers took up to 36 minutes; the role passes what this deployment took.
START_SECONDS = 3600.0
# After a day of service a new failure is a new one, and may be answered by a restart again.
RENEWED_SECONDS = 24 * 3600.0
# systemd's own default stop timeout is 90 s, and two units are stopped.
SYSTEMCTL_SECONDS = 300.0

OK, BUSY, STARTING, AT_WORK = "ok", "busy", "starting", "at_work"
FAILING, RESTARTED, GAVE_UP, REFUSED = "failing", "restarted", "gave_up", "refused"
EXIT_CODES = {OK: 0, BUSY: 0, STARTING: 0, AT_WORK: 0, FAILING: 1, RESTARTED: 2, GAVE_UP: 3, REFUSED: 4}

# Counters that grow while the engine computes anything. SGLang counts prompt and generated tokens when a request ends; what it counts
# meanwhile are its "realtime" tokens and, in streams, the waits between two tokens.
_PROGRESS = re.compile(
    r"^(?:vllm|sglang):(?:(?:prompt|generation|iteration|realtime)_tokens\w*|inter_token_latency_seconds_count)(?:\{[^}]*\})? ([\d.e+]+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Answer:
    """kind: ok, busy, refused or failing; seconds: how long the answer took."""

    kind: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class State:
    """What is kept between two looks. Times are seconds since 1970, 0 for never."""

    state: str = ""
    since: float = 0.0
    checked: float = 0.0
    failures: int = 0
    last_ok: float = 0.0
    serving_since: float = 0.0
    restarted: float = 0.0
    gave_up: float = 0.0
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class UnitTimes:
    """active: as systemd says; started: seconds since 1970 of the start that runs, 0 if none does."""

    active: str
    started: float


Runner = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


def run_command(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        # A program of the host: there is no AnsibleModule.
        return subprocess.run(list(argv), capture_output=True, text=True, timeout=SYSTEMCTL_SECONDS, check=False)  # pylint: disable=ansible-bad-function
    except FileNotFoundError as error:
        return subprocess.CompletedProcess(list(argv), 127, "", str(error))
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(argv), 124, "", f"no answer in {SYSTEMCTL_SECONDS:.0f} s")


# The question


@dataclass(frozen=True)
class Api:
    """key: the API's key, or empty."""

    url: str
    model: str
    key: str
    timeout: float = TIMEOUT_SECONDS

    def _ask(self, method: str, path: str, body: Any = None, timeout: float = 0.0) -> tuple[int, str]:
        parts = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(
            parts.hostname or "127.0.0.1", parts.port or 80, timeout=timeout or self.timeout
        )
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def progress(self) -> tuple[str, ...]:
        """The engine's counters of tokens, or nothing if it does not tell."""
        try:
            status, text = self._ask("GET", "/metrics", timeout=min(5.0, self.timeout))
        except (OSError, http.client.HTTPException):
            return ()
        return tuple(_PROGRESS.findall(text)) if status == 200 else ()

    def healthy(self) -> bool:
        try:
            return self._ask("GET", "/health", timeout=min(5.0, self.timeout))[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def one_token(self) -> Answer:
        before, started = self.progress(), time.monotonic()
        body = {"model": self.model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0}
        try:
            status, text = self._ask("POST", "/v1/completions", body)
        except TimeoutError:
            after = self.progress()
            if before and after and before != after:
                return Answer(
                    BUSY, f"no answer in {self.timeout:g} s, but the engine computes for others", self.timeout
                )
            health = " although /health says 200: a rank is dead or hangs" if self.healthy() else ""
            return Answer(FAILING, f"no answer in {self.timeout:g} s{health}", self.timeout)
        except (OSError, http.client.HTTPException) as error:
            return Answer(FAILING, f"the API does not answer: {str(error) or type(error).__name__}")
        seconds = round(time.monotonic() - started, 3)
        if status in (400, 401, 403, 404, 422):
            # The engine answers; it is the question that is wrong, and a restart does not change that.
            return Answer(REFUSED, f"the API refuses the question with status {status}", seconds)
        if status != 200 or '"choices"' not in text:
            return Answer(FAILING, f"the API answers with status {status}", seconds)
        return Answer(OK, "", seconds)


# What systemd knows, and what it is told


def _properties(name: str, properties: str, run: Runner) -> dict[str, str]:
    result = run(["systemctl", "show", name, f"--property={properties}"])
    return dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)


def unit_times(name: str, run: Runner) -> UnitTimes:
    values = _properties(name, "ActiveState,ActiveEnterTimestampMonotonic", run)
    entered = int(values.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
    active = values.get("ActiveState", "")
    if active == "activating":
        # It waits for the other hosts, or for its next start; systemd goes on to say when it was active the last time.
        return UnitTimes(active, time.time())
    if active not in ("active", "reloading") or not entered:
        return UnitTimes(active, 0.0)
    return UnitTimes(active, time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - entered))


def engine_times(run: Runner, has_ray: bool, last_ok: float) -> UnitTimes:
    """Of the engine itself, which may wait for something before it starts. last_ok: of the State."""
    unit = unit_times(ENGINE_UNIT, run)
    if has_ray:
        # Ray waits for the host's address, and the engine for Ray. After a failed start Ray is "activating" as well, and "auto-restart".
        waits = not unit.started and _properties(RAY_UNIT, "SubState", run).get("SubState") == "start-pre"
        return UnitTimes("activating", time.time()) if waits else unit
    if unit.active != "active" or last_ok > unit.started:
        return unit
    # The unit is active as soon as it waits for the other hosts; there is a container from when all are there.
    started = run(["docker", "inspect", "--format", "{{.State.StartedAt}}", ENGINE_CONTAINER])
    if started.returncode:
        return UnitTimes("activating", time.time())
    # Docker writes UTC, with nanoseconds.
    return UnitTimes(unit.active, calendar.timegm(time.strptime(started.stdout[:19], "%Y-%m-%dT%H:%M:%S")))


def start_again(run: Runner, has_ray: bool = True) -> str:
    """The engine stops, Ray of the head starts anew (its old state knows dead ranks), the engine starts. Returns what failed.

    The workers' Ray loses its head and is started again by its own unit; the engine's unit waits for them. Without Ray the workers'
    ranks end with the head's and are started again by their own units, and the head's waits for them (_mp_rank).
    """
    # The unit counts every start, a person's too, and would refuse this one in silence after a few: this one has a limit of its own.
    forget = ["reset-failed", ENGINE_UNIT]
    ray = [["restart", RAY_UNIT]] if has_ray else []
    orders = [forget, ["stop", ENGINE_UNIT], *ray, ["start", "--no-block", ENGINE_UNIT]]
    for order in orders:
        result = run(["systemctl", *order])
        if result.returncode:
            return f"systemctl {' '.join(order)} ended with {result.returncode}: {result.stderr.strip()}"
    return ""


# The policy


@dataclass(frozen=True)
class Policy:
    failures: int = FAILURES
    start_seconds: float = START_SECONDS


def decide(known: State, answer: Answer, unit: UnitTimes, policy: Policy, now: float) -> State:
    """What follows from this look. V(restarted) means that the restart is due."""
    fresh = replace(known, checked=now, seconds=answer.seconds, reason=answer.reason)
    if answer.kind in (OK, BUSY):
        serving = known.serving_since if known.state in (OK, BUSY) and known.serving_since else now
        healed = replace(fresh, failures=0, last_ok=now, serving_since=serving, gave_up=0.0)
        if healed.restarted and now - max(serving, healed.restarted) >= RENEWED_SECONDS:
            healed = replace(healed, restarted=0.0)
        return _entered(known, healed, answer.kind, now)
    if answer.kind == REFUSED:
        return _entered(known, replace(fresh, failures=0), REFUSED, now)
    answered_since_start = unit.started and known.last_ok > unit.started
    if unit.started and not answered_since_start and now - unit.started < policy.start_seconds:
        return _entered(known, replace(fresh, failures=0, reason=f"the engine starts: {answer.reason}"), STARTING, now)
    if known.gave_up and unit.started <= known.gave_up:
        return _entered(known, fresh, GAVE_UP, now)
    failed = replace(fresh, failures=known.failures + 1, serving_since=0.0, gave_up=0.0)
    if failed.failures < policy.failures:
        return _entered(known, failed, FAILING, now)
    if known.restarted:
        return _entered(known, replace(failed, gave_up=now), GAVE_UP, now)
    return _entered(known, replace(failed, failures=0, restarted=now), RESTARTED, now)


def _entered(known: State, state: State, name: str, now: float) -> State:
    return replace(state, state=name, since=known.since if known.state == name and known.since else now)


def read_state(path: str) -> State:
    try:
        with open(path, encoding="utf-8") as handle:
            values = json.load(handle)
        return State(**{name: values[name] for name in asdict(State()) if name in values})
    except (OSError, ValueError, TypeError):
        return State()


def write_state(state: State, path: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_file(path, json.dumps(asdict(state), indent=1).encode(), 0o600)


def describe(state: State) -> str:
    """The line for the journal."""
    if state.state == OK:
        return f"the engine answers in {state.seconds:g} s"
    if state.state == RESTARTED:
        return f"{state.reason}; the engine is started again, once and from the ground"
    if state.state == GAVE_UP:
        return f"gave up: {state.reason}; a restart did not help, the engine must be looked at (engine_log_check)"
    if state.state == FAILING:
        return f"{state.reason} (failure {state.failures})"
    return f"{state.state}: {state.reason}"


def _say(line: str) -> None:
    sys.stdout.write(f"{PROGRAM}: {line}\n")
    sys.stdout.flush()


def read_key(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read().strip()
    except FileNotFoundError:
        return ""


def look(options: argparse.Namespace, run: Runner = run_command) -> State:
    known, now = read_state(options.state_file), time.time()
    if os.path.exists(options.lease_file):
        state = _entered(
            known, replace(known, checked=now, failures=0, reason="a deployment is at work on this host"), AT_WORK, now
        )
    else:
        answer = Api(options.url, options.model, read_key(options.key_file), options.timeout).one_token()
        policy = Policy(options.failures, options.start_seconds)
        unit = engine_times(run, not options.no_ray, known.last_ok)
        state = decide(known, answer, unit, policy, time.time())
    write_state(state, options.state_file)
    if state.state == RESTARTED:
        _say(describe(state))
        problem = start_again(run, not options.no_ray)
        if problem:
            state = replace(state, state=GAVE_UP, gave_up=time.time(), reason=f"{state.reason}; {problem}")
            write_state(state, options.state_file)
            _say(describe(state))
    elif state.state != OK or known.state != OK:
        # A line a minute that all is well helps nobody.
        _say(describe(state))
    return state


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        PROGRAM, description="Asks the engine for one token, and restarts it once when it is dead."
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--key-file", default=KEY_FILE)
    parser.add_argument("--state-file", default=STATE_FILE)
    parser.add_argument("--lease-file", default=LEASE_FILE)
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS)
    parser.add_argument("--failures", type=int, default=FAILURES)
    parser.add_argument("--start-seconds", type=float, default=START_SECONDS)
    parser.add_argument("--no-ray", action="store_true", help="the ranks are brought together without Ray")
    return EXIT_CODES[look(parser.parse_args(list(argv))).state]
