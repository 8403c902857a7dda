# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleUndefinedVariable
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.action import ActionBase

ROLES_FOLDER = Path(__file__).parents[2] / "roles"
# Keys of an option in meta/argument_specs.yml that say nothing about its value.
_DESCRIBING = ("description", "version_added")


class ActionModule(ActionBase):
    """Checks the options of several roles at once, before any of them has done something. Runs on the control node only.

    What is not known yet, because an earlier role finds it out, is left out.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("roles",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        roles = [str(role) for role in self._task.args.get("roles") or ()]
        unknown = [role for role in roles if not (ROLES_FOLDER / role).is_dir()]
        if not roles or unknown:
            known = ", ".join(sorted(path.name for path in ROLES_FOLDER.iterdir()))
            raise AnsibleActionFail(f"roles is {self._task.args.get('roles')}; give a list of: {known}.")
        defaults = {role: self._read(role, "defaults/main.yml") for role in roles}
        merged: dict[str, Any] = {}
        for values in defaults.values():
            merged.update(values)
        self._templar.available_variables = {**merged, **variables}
        problems = [problem for role in roles for problem in self._problems(role, defaults[role], variables)]
        if problems:
            return {"failed": True, "msg": "Options that cannot be used; nothing was changed.\n" + "\n".join(problems)}
        return {"changed": False}

    def _read(self, role: str, path: str) -> dict[str, Any]:
        file = ROLES_FOLDER / role / path
        return dict(self._loader.load_from_file(str(file), trusted_as_template=True) or {}) if file.exists() else {}

    def _problems(self, role: str, defaults: Mapping[str, Any], variables: Mapping[str, Any]) -> Iterator[str]:
        specs = self._read(role, "meta/argument_specs.yml")["argument_specs"]
        options = {name: option for entry in specs.values() for name, option in (entry.get("options") or {}).items()}
        for name, option in options.items():
            given = variables[name] if name in variables else defaults.get(name)
            if option.get("required") or given is None:
                continue
            # The user's own name for it, where the default asks for one.
            sources = re.findall(r"\bspark_\w+", str(defaults.get(name)))
            title = f"{name} ({', '.join(sources)})" if sources and name not in variables else name
            try:
                value = self._templar.template(given)
            except AnsibleUndefinedVariable:
                continue
            spec = {key: setting for key, setting in option.items() if key not in _DESCRIBING}
            for error in ArgumentSpecValidator({name: spec}).validate({name: value}).error_messages:
                yield f"{title}: {error}"
