# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.dgxspark.serving.plugins.module_utils._fabric_pairs import (
    compare_fabrics,
    compare_probes,
    judge_forwarding,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, INFO, WARNING, Finding, describe
from ansible_collections.dgxspark.serving.plugins.module_utils._host_pairs import (
    compare_clocks,
    compare_gpus,
    compare_image_room,
    compare_systems,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import (
    Selection,
    memory_finding,
    stoppable_unlisted,
    unidentified,
    unlisted_findings,
    with_container_details,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._trial import NEEDED_GIB

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


def missing_password(result: Mapping[str, Any]) -> bool:
    """Whether root's rights were not given, which is not the same as refused."""
    message = str(result.get("msg") or "").lower()
    return bool(result.get("failed")) and "missing" in message and "password" in message


def comparisons(plan: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """What only the results of all hosts together tell. own: host to its results of host_survey, nccl_ib_check, gpu_memory_check."""
    surveys = {name: results["survey"] for name, results in own.items() if "survey" in results}
    fabrics = {name: results for name, results in own.items() if "rails" in results}
    probes = {name: survey["probe"] for name, survey in surveys.items() if "probe" in survey}
    firewalls = {name: survey["firewalls"] for name, survey in surveys.items() if "firewalls" in survey}
    let_in = {name: survey.get("firewall_lets_in") for name, survey in surveys.items()}
    hosts = plan["hosts"]
    return [
        *compare_systems(surveys),
        *compare_gpus(hosts, own),
        *compare_image_room(hosts, surveys),
        *compare_clocks(probes),
        *compare_fabrics(hosts, fabrics),
        *compare_probes(probes, firewalls, let_in),
        *judge_forwarding(hosts, firewalls),
    ]


class ActionModule(ActionBase):
    """Collects the findings of all hosts and stops the deployment with one report. Runs on the control node only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(
        (
            "results",
            "hosts",
            "holders",
            "stop",
            "keep",
            "unlisted_holders",
            "utilization",
            "gate",
            "plan",
            "become_optional",
            "before_teardown",
            "trial_gib",
        )
    )

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
        self._available_gib: list[float] = []
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
        if self._task.args.get("plan"):
            findings += comparisons(self._task.args["plan"], self._merged_results(variables["hostvars"], names))
        return self._verdict(hosts, findings)

    @staticmethod
    def _merged_results(hostvars: Mapping[str, Any], names: list[str]) -> dict[str, dict[str, Any]]:
        """Host to what its checks returned, in one dictionary each; the checks name their results differently."""
        merged: dict[str, dict[str, Any]] = {}
        for host in hostvars:
            for name in names:
                result = hostvars[host].get(name)
                if isinstance(result, Mapping) and "findings" in result:
                    merged.setdefault(host, {}).update(result)
        return merged

    def _verdict(self, hosts: list[str], findings: list[Finding]) -> dict[str, Any]:
        errors = [finding for finding in findings if finding.severity == ERROR]
        warnings = [finding for finding in findings if finding.severity == WARNING]
        result: dict[str, Any] = {
            "changed": False,
            "findings": [finding.as_dict() for finding in findings],
            "stop_unlisted": self._stop_unlisted,
            "trial_has_room": self._trial_has_room(),
        }
        if errors:
            gate = self._task.args.get("gate") or "This check"
            result["failed"] = True
            stopped = "; nothing was stopped" if self._task.args.get("before_teardown", True) else ""
            result["msg"] = f"{gate} found {len(errors)} error(s){stopped}.\n{describe(errors + warnings)}"
            return result
        for line in describe(warnings + [finding for finding in findings if finding.severity == INFO]).splitlines():
            display.display(f"   {line}")
        if self._task.args.get("plan"):
            display.display(f"   {len(hosts)} host(s) looked at: no error, {len(warnings)} warning(s)")
        return result

    def _trial_has_room(self) -> bool:
        """Whether the trial can run beside what runs now, on every host whose memory was looked at."""
        needed = float(self._task.args.get("trial_gib") or NEEDED_GIB)
        return bool(self._available_gib) and min(self._available_gib) >= needed

    def _host_findings(self, host: str, own: Mapping[str, Any], names: list[str]) -> list[Finding]:
        findings = []
        results = {name: own.get(name) for name in names}
        for name, result in results.items():
            if not isinstance(result, Mapping):
                findings.append(Finding("HOST.CHECK_FAILED", ERROR, host, f"There is no result {name}."))
            elif result.get("skipped") or (self._task.args.get("become_optional") and missing_password(result)):
                continue
            elif "findings" in result:
                findings += [
                    Finding(**{**entry, "subject": self._subject(host, entry)}) for entry in result["findings"]
                ]
            elif result.get("failed") or result.get("unreachable"):
                failure = finding_of_failure(host, result)
                # Each check of a host that does not answer says so.
                if failure.id not in {finding.id for finding in findings} or failure.id == "HOST.CHECK_FAILED":
                    findings.append(failure)
        if any(result["survey"].get("containers") for result in results.values() if result and "survey" in result):
            # host_survey has the names.
            findings = [finding for finding in findings if finding.id != "MEMORY.CONTAINER_NAMES_UNKNOWN"]
        if self._task.args.get("holders"):
            findings += self._holder_findings(host, results)
        return findings

    @staticmethod
    def _subject(host: str, entry: Mapping[str, Any]) -> str:
        return host if entry["subject"] in ("host", host) else f"{host} {entry['subject']}"

    @staticmethod
    def _torn_down(entry: Mapping[str, Any], survey: Mapping[str, Any]) -> bool:
        """Whether the teardown that the host has planned stops this holder, by whatever way it found to it."""
        planned = survey.get("teardown") or {}
        names = {f"container {entry.get('container')}", f"unit {entry.get('systemd_unit')}"}
        return bool(names & set(planned.get("stop") or ())) or entry.get("pid") in (planned.get("processes") or ())

    def _holder_findings(self, host: str, results: Mapping[str, Any]) -> list[Finding]:
        arguments = self._task.args
        survey: Mapping[str, Any] = next((r["survey"] for r in results.values() if r and "survey" in r), {})
        checked: Mapping[str, Any] = next((r for r in results.values() if r and "holders" in r), {})
        holders = with_container_details(checked.get("holders") or [], survey.get("containers") or [])
        listeners = [dict(entry) for entry in survey.get("listeners") or []]
        for entry in (*holders, *listeners):
            entry["torn_down"] = self._torn_down(entry, survey)
        if checked.get("memory"):
            self._available_gib.append(float(checked["memory"]["available_gib"]))
        unknown: list[dict[str, Any]] = []
        findings: list[Finding] = []
        if survey.get("unseen"):
            unknown, findings = unidentified(host, holders, listeners)
            holders = [entry for entry in holders if entry not in unknown]
            listeners = [entry for entry in listeners if entry not in unknown]
        unlisted = str(arguments.get("unlisted_holders") or "fail")
        lists = Selection.parse(arguments.get("stop")), Selection.parse(arguments.get("keep"))
        unit_containers = survey.get("unit_containers") or {}
        also_stopped = stoppable_unlisted([*holders, *listeners], *lists, unit_containers) if unlisted == "stop" else []
        self._stop_unlisted[host] = also_stopped
        findings += unlisted_findings(host, holders, listeners, *lists, unit_containers, unlisted)
        if checked.get("memory") and arguments.get("utilization") and not unknown:
            utilization = float(arguments["utilization"])
            foreseen = memory_finding(
                host, holders, checked["memory"], utilization, *lists, unit_containers, also_stopped
            )
            # A holder that stops the run anyway need not be explained twice.
            findings += [finding for finding in foreseen if finding.severity != ERROR or not findings]
        return findings
