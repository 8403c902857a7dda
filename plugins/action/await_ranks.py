# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.module_utils._rank_watch import (
    FAILED,
    READY,
    WAITING,
    RankWatch,
    engine_phase,
    ray_verdict,
)
from ansible_collections.dgxspark.serving.plugins.plugin_utils._run_log import RunLog

display = Display()

# A look costs each host about half a second; a phase of a start lasts from seconds to minutes.
LOOK_EVERY_SECONDS = 3
# A line at least so often, so that nobody thinks the run hangs.
SAY_EVERY_SECONDS = 30
# A cable that is pulled and put back, or an SSH server that restarts, costs less than this.
LOST_CONNECTION_SECONDS = 20


class ActionModule(ActionBase):
    """Waits on every host at the same time until Ray is complete or the engine answers.

    Each host's own task watches its own rank and tells the others through the run's folder on the control node: the head
    decides that all is ready, and any rank that fails ends the wait of all.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(
        (
            *(
                "what",
                "run",
                "host",
                "hosts",
                "units",
                "ray_container",
                "health_url",
                "progress_seconds",
                "total_seconds",
            ),
            *("restore_seconds", "next_seconds", "attempt"),
        )
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "Not evaluated in check mode."}
        arguments = self._task.args
        self._what, self._host = str(arguments["what"]), dict(arguments["host"])
        # Each attempt has messages of its own: the failure of the one before must not end the next.
        self._topic = f"{self._what}{arguments.get('attempt') or ''}"
        self._log = RunLog(str(arguments["run"]))
        self._peers = [str(host["name"]) for host in arguments["hosts"] if host["name"] != self._host["name"]]
        self._head = next(str(host["name"]) for host in arguments["hosts"] if host["role"] == "head")
        self._expected = {str(host["control_address"]): int(host["gpus"]) for host in arguments["hosts"]}
        self._restore_seconds = int(arguments.get("restore_seconds") or 0)
        started = time.time()
        watch = RankWatch(started, float(arguments["progress_seconds"]), float(arguments["total_seconds"]))
        state, explanation = self._wait(watch, task_vars)
        if state == READY and self._restore_seconds and arguments.get("next_seconds"):
            state, explanation = self._keep_way_back_open(explanation, int(arguments["next_seconds"]), task_vars)
        self._log.say(self._topic, self._host["name"], {"state": state, "explanation": explanation})
        result: dict[str, Any] = {
            "changed": False,
            "phases": [{"phase": phase, "at_seconds": at} for phase, at in watch.history],
            "started": started,
            "stalled_seconds": watch.progress_limit if explanation.startswith("no progress") else 0,
            "seconds": round(time.time() - started, 1),
            "state": state,
            "explanation": explanation,
        }
        if state == FAILED:
            tail = "\n".join(f"    {line}" for line in watch.tail)
            result.update(
                failed=True, msg=f"{self._host['name']}: {explanation}." + (f" Its last lines:\n{tail}" if tail else "")
            )
        return result

    def _keep_way_back_open(self, explanation: str, seconds: int, task_vars: dict[str, Any] | None) -> tuple[str, str]:
        """For the next gate, which looks at one host only: no other sign of the run reaches this one meanwhile."""
        self._restore_seconds += seconds
        snapshot = self._look_again("", time.time(), task_vars)
        return (FAILED, str(snapshot.get("msg"))) if snapshot.get("failed") else (READY, explanation)

    def _wait(self, watch: RankWatch, task_vars: dict[str, Any] | None) -> tuple[str, str]:
        cursor, said = "", watch.started
        while True:
            snapshot = self._look_again(cursor, watch.started, task_vars)
            now = time.time()
            if snapshot.get("failed") or snapshot.get("unreachable"):
                return FAILED, f"the rank cannot be looked at: {snapshot.get('msg')}"
            cursor = snapshot["cursor"]
            watch.take_lines(snapshot["lines"], now)
            before = watch.phase
            state, explanation = self._judge(watch, snapshot, now)
            if state != WAITING:
                return state, explanation
            peer = self._peer_verdict()
            if peer:
                return peer
            self._share_progress(watch)
            overdue = watch.overdue(now)
            if overdue:
                return FAILED, f"{overdue}; last seen: {watch.phase or explanation}"
            if watch.phase != before or now - said > SAY_EVERY_SECONDS:
                display.display(f"   [{self._host['name']} +{now - watch.started:.0f} s] {watch.phase or explanation}")
                said = now
            time.sleep(LOOK_EVERY_SECONDS)

    def _look_again(self, cursor: str, since: float, task_vars: dict[str, Any] | None) -> Mapping[str, Any]:
        """A lost connection is tried again, and then a failure: an unreachable host would end the play without its way back."""
        lost_since = time.time()
        while True:
            try:
                return self._look(cursor, since, task_vars)
            except AnsibleConnectionFailure as error:
                if time.time() - lost_since > LOST_CONNECTION_SECONDS:
                    return {"failed": True, "msg": f"no connection for {LOST_CONNECTION_SECONDS} s: {error}"}
            time.sleep(LOOK_EVERY_SECONDS)

    def _look(self, cursor: str, since: float, task_vars: dict[str, Any] | None) -> Mapping[str, Any]:
        is_head = self._host["name"] == self._head
        snapshot: Mapping[str, Any] = self._execute_module(
            module_name="dgxspark.serving.rank_snapshot",
            module_args={
                "units": list(self._task.args["units"]),
                "cursor": cursor,
                "since": since,
                "run": self._log.run,
                "restore_seconds": self._restore_seconds,
                "ray_container": str(self._task.args.get("ray_container") or "")
                if is_head and self._what == "ray"
                else "",
                "health_url": str(self._task.args.get("health_url") or "")
                if is_head and self._what == "engine"
                else "",
            },
            task_vars=task_vars,
        )
        return snapshot

    def _judge(self, watch: RankWatch, snapshot: Mapping[str, Any], now: float) -> tuple[str, str]:
        broken = watch.units_failed(snapshot["units"], restarts_allowed=self._what == "ray")
        if broken:
            return FAILED, broken
        if self._host["name"] != self._head:
            return WAITING, "this rank runs"
        if self._what == "ray":
            state, explanation = ray_verdict(snapshot["ray"], self._expected)
            watch.enter(explanation, now)
            return state, explanation
        watch.enter(engine_phase(snapshot["lines"], watch.phase), now)
        if snapshot["health"] == 200:
            watch.enter("ready", now)
            return READY, "the API answers"
        return WAITING, "the engine starts"

    def _share_progress(self, watch: RankWatch) -> None:
        """A worker is silent while the head compiles, and the other way round: any rank that moves is progress of all."""
        topic = f"{self._topic}-progress"
        self._log.say(topic, self._host["name"], {"at": watch.last_progress})
        for peer in self._peers:
            message = self._log.heard(topic, peer)
            if message:
                watch.last_progress = max(watch.last_progress, float(message["at"]))

    def _peer_verdict(self) -> tuple[str, str] | None:
        """What ends this host's wait because of another: a failed rank, or the head that is ready."""
        for peer in self._peers:
            message = self._log.heard(self._topic, peer)
            if message and message["state"] == FAILED:
                return FAILED, f"ended because of {peer}: {message['explanation']}"
            if message and message["state"] == READY and peer == self._head:
                return READY, str(message["explanation"])
        return None
