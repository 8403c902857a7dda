# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding, describe
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import (
    Selection,
    memory_finding,
    stoppable_unlisted,
    unlisted_findings,
    with_container_details,
)

display = Display()


def finding_of_failure(host: str, result: Mapping[str, Any]) -> Finding:
    """Why a check gave no findings: the host cannot be reached, become does not work, or the module could not look."""
    message = str(result.get("msg") or "no answer")
    lowered = message.lower()
    if "password" in lowered and ("sudo" in lowered or "become" in lowered or "escalation" in lowered):
        return Finding(
            "HOST.BECOME_REFUSED",
            ERROR,
            host,
            f"sudo on {host} refuses: {message}",
            "Give the user's sudo password with --ask-become-pass or ansible_become_password (in a vault), and check that the user may use sudo.",
            message,
        )
    if result.get("unreachable"):
        return Finding(
            "HOST.UNREACHABLE",
            ERROR,
            host,
            f"{host} cannot be reached over SSH: {message}",
            "Check the host, its address and keys in the inventory: ansible spark -m ping. A worker is reached through the head.",
            message,
        )
    return Finding("HOST.CHECK_FAILED", ERROR, host, f"A check could not be made: {message}", "", message)


class ActionModule(ActionBase):
    """Collects the findings of all hosts and stops the deployment with one report. Runs on the control node only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("results", "hosts", "holders", "stop", "keep", "unlisted_holders", "utilization", "gate"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        hosts = list(self._task.args.get("hosts") or variables["groups"]["spark"])
        names = list(self._task.args.get("results") or [])
        if not names:
            raise AnsibleActionFail("findings_report needs results, a list of names of registered variables.")
        played = set(variables.get("ansible_play_hosts_all") or hosts)
        findings: list[Finding] = []
        self._stop_unlisted: dict[str, list[str]] = {}
        for host in hosts:
            if host not in played:
                findings.append(
                    Finding(
                        "HOST.LEFT_OUT",
                        ERROR,
                        host,
                        f"{host} is in group spark but does not take part in this run.",
                        "Run without --limit: a deployment needs every host. To use fewer hosts, take it out of the inventory.",
                    )
                )
                continue
            findings += self._host_findings(host, variables["hostvars"][host], names)
        errors = [finding for finding in findings if finding.severity == ERROR]
        warnings = [finding for finding in findings if finding.severity == WARNING]
        result: dict[str, Any] = {
            "changed": False,
            "findings": [finding.as_dict() for finding in findings],
            "stop_unlisted": self._stop_unlisted,
        }
        if errors:
            gate = self._task.args.get("gate") or "This check"
            result["failed"] = True
            result["msg"] = f"{gate} found {len(errors)} error(s); nothing was stopped.\n{describe(errors + warnings)}"
            return result
        for line in describe(warnings + [finding for finding in findings if finding.severity == INFO]).splitlines():
            display.display(f"   {line}")
        return result

    def _host_findings(self, host: str, own: Mapping[str, Any], names: list[str]) -> list[Finding]:
        findings = []
        results = {name: own.get(name) for name in names}
        for name, result in results.items():
            if not isinstance(result, Mapping):
                findings.append(Finding("HOST.CHECK_FAILED", ERROR, host, f"There is no result {name}."))
            elif result.get("skipped"):
                continue
            elif "findings" not in result:
                findings.append(finding_of_failure(host, result))
            else:
                findings += [
                    Finding(**{**entry, "subject": self._subject(host, entry)}) for entry in result["findings"]
                ]
        if self._task.args.get("holders"):
            findings += self._holder_findings(host, results)
        return findings

    @staticmethod
    def _subject(host: str, entry: Mapping[str, Any]) -> str:
        return host if entry["subject"] in ("host", host) else f"{host} {entry['subject']}"

    def _holder_findings(self, host: str, results: Mapping[str, Any]) -> list[Finding]:
        arguments = self._task.args
        survey: Mapping[str, Any] = next((r["survey"] for r in results.values() if r and "survey" in r), {})
        checked: Mapping[str, Any] = next((r for r in results.values() if r and "holders" in r), {})
        holders = with_container_details(checked.get("holders") or [], survey.get("containers") or [])
        listeners = survey.get("listeners") or []
        unlisted = str(arguments.get("unlisted_holders") or "fail")
        lists = Selection.parse(arguments.get("stop")), Selection.parse(arguments.get("keep"))
        unit_containers = survey.get("unit_containers") or {}
        also_stopped = stoppable_unlisted([*holders, *listeners], *lists, unit_containers) if unlisted == "stop" else []
        self._stop_unlisted[host] = also_stopped
        findings = unlisted_findings(host, holders, listeners, *lists, unit_containers, unlisted)
        # A holder that stops the run anyway need not be explained twice.
        if checked.get("memory") and arguments.get("utilization") and not findings:
            utilization = float(arguments["utilization"])
            findings += memory_finding(
                host, holders, checked["memory"], utilization, *lists, unit_containers, also_stopped
            )
        return findings
