# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import describe
from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import ruleset
from ansible_collections.dgxspark.serving.plugins.module_utils._plan import (
    PlannedHost,
    PlanOptions,
    PlanRefused,
    build_plan,
    merged,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_lease import LEASE_SECONDS

PRESETS_FOLDER = Path(__file__).resolve().parents[2] / "playbooks" / "presets"


def load_preset(name: str) -> dict[str, Any]:
    """The preset of that name of the collection, or the file of that path, over the one that it extends."""
    path = Path(name).expanduser() if name.endswith((".yml", ".yaml")) else PRESETS_FOLDER / f"{name}.yml"
    try:
        preset = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        known = ", ".join(sorted(entry.stem for entry in PRESETS_FOLDER.glob("*.yml")))
        raise AnsibleActionFail(
            f"spark_preset is {name!r}: there is no file {path}. Presets of the collection: {known}; "
            "a preset of your own is given as the path of its YAML file."
        ) from error
    except yaml.YAMLError as error:
        raise AnsibleActionFail(f"spark_preset: {path} is not valid YAML: {error}") from error
    if not isinstance(preset, Mapping):
        raise AnsibleActionFail(f"spark_preset: {path} must hold a dictionary.")
    extended = str(preset.get("extends") or "")
    if extended:
        if extended.endswith((".yml", ".yaml")):
            # As an import: from where this file is.
            extended = str(path.parent / Path(extended).expanduser())
        preset = merged(load_preset(extended), {key: value for key, value in preset.items() if key != "extends"})
    return dict(preset)


class ActionModule(ActionBase):
    """Gate 1: the plan of the deployment, from preset, inventory and run variables. Runs on the control node only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(
        (
            "preset",
            "overrides",
            "model_folder",
            "candidates",
            "tensor_parallel",
            "pipeline_parallel",
            "utilization",
            "max_model_len",
            "backend",
            "unlisted_holders",
            "api_bind",
            "api_port",
            "rollback",
            "restore_seconds",
            "firewall",
            "open_ports",
            "stop",
            "keep",
        )
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = self._task.args
        preset = merged(load_preset(str(arguments["preset"])), arguments.get("overrides") or {})
        preset = merged(preset, self._single_values(arguments))
        hosts = [self._host(name, variables) for name in variables.get("groups", {}).get("spark", [])]
        options = PlanOptions(
            backend=str(arguments.get("backend") or "ray"),
            unlisted_holders=str(arguments.get("unlisted_holders") or "fail"),
            api_bind=str(arguments.get("api_bind") or ""),
            api_port=int(arguments.get("api_port") or 8000),
            # With -e name=false a value is text.
            rollback=boolean(arguments.get("rollback", True)),
            restore_seconds=int(arguments.get("restore_seconds") or LEASE_SECONDS),
            firewall=boolean(arguments.get("firewall", True)),
            open_ports=arguments.get("open_ports") or (),
            ssh_ports=self._ssh_ports(hosts, variables),
        )
        host_name = variables["inventory_hostname"]
        self._check_forks(len(hosts))
        for name in ("stop", "keep"):
            if not isinstance(arguments.get(name) or {}, Mapping):
                raise AnsibleActionFail(
                    f"spark_{name} must be a dictionary of lists: units, containers, images, labels, processes."
                )
        options = PlanOptions(
            **{**options.__dict__, "stop": arguments.get("stop") or {}, "keep": arguments.get("keep") or {}}
        )
        try:
            plan = build_plan(preset, hosts, options)
        except PlanRefused as refusal:
            raise AnsibleActionFail(
                "The plan does not fit; nothing was touched.\n" + describe(refusal.findings)
            ) from refusal
        plan["firewall_rules"] = ruleset(plan)
        plan["host"] = next(host for host in plan["hosts"] if host["name"] == host_name)
        return {"changed": False, **plan}

    @staticmethod
    def _ssh_ports(hosts: Sequence[PlannedHost], variables: Mapping[str, Any]) -> list[Any]:
        """The ports by which Ansible comes in, where the inventory says any."""
        own = [variables["hostvars"][host.name] for host in hosts]
        ports = [values.get("ansible_port") or values.get("ansible_ssh_port") for values in own]
        return [port for port in ports if port]

    @staticmethod
    def _check_forks(hosts: int) -> None:
        """Staging and the waits are one task on all hosts at the same time: with fewer forks they would wait for each other."""
        forks = int(context.CLIARGS["forks"])
        if forks < hosts:
            raise AnsibleActionFail(
                f"forks is {forks}, but {hosts} hosts must work at the same time. Set forks = {hosts} or more in ansible.cfg, or --forks {hosts}."
            )

    @staticmethod
    def _single_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the preset that have a variable of their own, where the user set it (0 and empty mean: as the preset says)."""
        given = {
            ("model", "folder"): str(arguments.get("model_folder") or ""),
            ("parallel", "tensor"): int(arguments.get("tensor_parallel") or 0),
            ("parallel", "pipeline"): int(arguments.get("pipeline_parallel") or 0),
            ("engine", "utilization"): float(arguments.get("utilization") or 0),
            ("engine", "max_model_len"): int(arguments.get("max_model_len") or 0),
        }
        values: dict[str, Any] = {}
        for (section, name), value in given.items():
            if value:
                values.setdefault(section, {})[name] = value
        if arguments.get("candidates"):
            values["candidates"] = list(arguments["candidates"])
        return values

    @staticmethod
    def _host(name: str, variables: Mapping[str, Any]) -> PlannedHost:
        own = variables["hostvars"][name]
        role = "head" if name in variables["groups"].get("head", []) else "worker"
        return PlannedHost(
            name,
            role,
            tuple(str(address) for address in own.get("spark_fabric_addresses") or ()),
            str(own.get("spark_management_address") or ""),
        )
