# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import ENDED, FOLDER
from ansible_collections.dgxspark.serving.plugins.module_utils._staging_look import all_have_the_same, as_results
from ansible_collections.dgxspark.serving.plugins.plugin_utils._transfer_lines import Transfers, would_be_moved

display = Display()

# A look costs a host about half a second. The first come sooner: mostly there is nothing to do.
FIRST_LOOKS_SECONDS = 0.3
LOOK_EVERY_SECONDS = 2.0
# The hard limit of a copy. 40 GB of image and 122 GB of weights over a slow line of 50 Mbit/s take seven hours.
LIMIT_SECONDS = 12 * 3600
MODULES = {"image": "dgxspark.serving.image_sync", "weights": "dgxspark.serving.model_weights"}


class ActionModule(ActionBase):
    """Gate 4: starts both copies on the host, and asks how far they are until both have ended or one has failed.

    Where a look at the hosts has shown that all have everything, nothing is started.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("host", "hosts", "head", "looks", "run", "image", "weights"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = self._task.args
        self._host, self._vars = str(arguments["host"]), task_vars
        options = {name: dict(arguments[name]) for name in MODULES}
        began = time.time()
        if self._task.check_mode:
            results = {name: dict(self._module(MODULES[name], options[name])) for name in MODULES}
            for line in would_be_moved(self._host, results):
                display.display(f"   {line}")
        else:
            results = self._nothing_to_do(options) or self._in_background(options, str(arguments["run"]))
        failed = {name: result for name, result in results.items() if result.get("failed")}
        result = {
            "changed": any(found.get("changed") for found in results.values()),
            "digest": str(results["weights"].get("digest") or ""),
            "seconds": round(time.time() - began, 1),
            **results,
        }
        if failed:
            reasons = [str(found.get("msg") or f"{name} ended without a word") for name, found in failed.items()]
            return {"failed": True, "msg": f"{self._host}: " + "; ".join(reasons), **result}
        return result

    def _nothing_to_do(self, options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]] | None:
        """The results where all hosts have everything already; None where something may be missing, or must be read whole."""
        looks = dict(self._task.args.get("looks") or {})
        if boolean(options["weights"].get("checksum") or False) or not all(
            looks.get(name) for name in self._task.args["hosts"]
        ):
            return None
        digest = str(options["image"].get("digest") or "")
        same = all_have_the_same(looks, str(self._task.args["head"]), digest)
        return as_results(looks[self._host]) if same else None

    def _module(self, name: str, options: Mapping[str, Any], in_background: bool = False) -> Mapping[str, Any]:
        result: Mapping[str, Any] = self._execute_module(
            module_name=name, module_args=dict(options), task_vars=self._vars, wrap_async=in_background
        )
        return result

    def _start(self, name: str, options: Mapping[str, Any], progress: str) -> Mapping[str, Any]:
        """Start a module in the background, in a temporary folder of its own, which Ansible's wrapper removes."""
        self._connection._shell.tmpdir = None
        self._task.async_val = LIMIT_SECONDS
        try:
            return self._module(MODULES[name], {**options, "progress_path": progress}, in_background=True)
        finally:
            self._task.async_val = 0
            self._connection._shell.tmpdir = None

    def _in_background(self, options: Mapping[str, Mapping[str, Any]], run: str) -> dict[str, dict[str, Any]]:
        jobs: dict[str, dict[str, str]] = {}
        results: dict[str, dict[str, Any]] = {}
        for name in MODULES:
            progress = f"{FOLDER}/{run}-{name}.json"
            started = self._start(name, options[name], progress)
            if started.get("failed") or not started.get("results_file"):
                results[name] = {**started, "failed": True}
            else:
                jobs[name] = {"progress": progress, "result": str(started["results_file"])}
        transfers, pause = Transfers(self._host, time.time()), FIRST_LOOKS_SECONDS
        while jobs:
            broken = any(result.get("failed") for result in results.values())
            asked = self._module(
                "dgxspark.serving.staging_progress", {"jobs": jobs, "end": list(jobs) if broken else []}
            )
            if asked.get("failed") or asked.get("unreachable"):
                return {**results, **{name: {**asked, "failed": True} for name in jobs}}
            for name, state in asked["jobs"].items():
                if state["result"] is not None:
                    # Ansible's wrapper would say with a traceback that it has no result.
                    was_ended = broken and ENDED in str(state["result"].get("stderr") or "")
                    results[name] = {"msg": "", "ended": True} if was_ended else dict(state["result"])
                    del jobs[name]
            if broken:
                results.update({name: {"msg": "", "ended": True} for name in jobs})
                break
            for line in transfers.lines({name: asked["jobs"][name]["progress"] for name in jobs}, time.time()):
                display.display(f"   {line}")
            if jobs:
                pause = min(pause * 1.5, LOOK_EVERY_SECONDS)
                time.sleep(pause)
        return results
