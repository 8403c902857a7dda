# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

# A look takes about half a second; released memory comes back within seconds, and with a slow driver within a minute.
LOOK_EVERY_SECONDS = 2
# A line at least so often, so that nobody thinks the run hangs.
SAY_EVERY_SECONDS = 10
_PAGE_CACHE = "MEMORY.PAGE_CACHE"


def describe_memory(result: Mapping[str, Any]) -> str:
    """What is available, and who holds the most of the rest."""
    memory = result["memory"]
    line = f"{memory['available_gib']:.1f} of {memory['total_gib']:.1f} GiB available"
    holders = [
        f"{holder['container'] or holder['title'] or holder['process']} (pid {holder['pid']}, {holder['used_gib']:.1f} GiB)"
        for holder in result["holders"]
        if holder["used_gib"]
    ]
    return line + (f", held: {', '.join(holders[:3])}" if holders else "")


class ActionModule(ActionBase):
    """Waits until an engine would start on this host, says how far it is, and drops the page cache only where it is in the way.

    Returns what M(dgxspark.serving.gpu_memory_check) said last, whether the memory came back or not.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("utilization", "settle_seconds"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "Not evaluated in check mode."}
        host = str((task_vars or {})["inventory_hostname"])
        started = time.time()
        limit = float(self._task.args.get("settle_seconds") or 0)
        said, said_at, dropped = "", started, False
        while True:
            drop = dropped is False and said == _PAGE_CACHE
            result = self._look(drop, task_vars)
            if result.get("failed") or result.get("fits") is not False:
                break
            dropped = dropped or drop
            now = time.time()
            in_the_way = any(finding["id"] == _PAGE_CACHE for finding in result["findings"])
            if in_the_way and not dropped:
                said = _PAGE_CACHE
                display.display(f"   [{host}] {describe_memory(result)}: dropping the page cache")
                continue
            if now - started >= limit:
                break
            line = describe_memory(result)
            if line != said or now - said_at > SAY_EVERY_SECONDS:
                display.display(f"   [{host} +{now - started:.0f} s] {line}")
                said, said_at = line, now
            time.sleep(LOOK_EVERY_SECONDS)
        return {**result, "waited_seconds": round(time.time() - started, 1)}

    def _look(self, drop_caches: bool, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name="dgxspark.serving.gpu_memory_check",
            module_args={"utilization": float(self._task.args["utilization"]), "drop_caches": drop_caches},
            task_vars=task_vars,
        )
        return result
