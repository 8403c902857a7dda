# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A secret that no host has is made without asking one; one that a host has is never made anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.dgxspark.serving.plugins.action.host_secrets import ActionModule

TOKEN = "/etc/dgxspark/ray-token"


def run(monkeypatch: pytest.MonkeyPatch, check_mode: bool = False, **arguments: Any) -> dict[str, Any]:
    """Asks a host whose token is "of the host"."""
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    action = object.__new__(ActionModule)
    action._task = SimpleNamespace(args=arguments, check_mode=check_mode)
    action._execute_module = lambda **call: {"secrets": dict.fromkeys(call["module_args"]["lengths"], "of the host")}
    result: dict[str, Any] = action.run(None, {})
    return result


@pytest.mark.parametrize("known", [{}, {"head": {TOKEN: "1"}, "worker": {}}, {"head": None, "worker": {TOKEN: "1"}}])
def test_a_host_that_may_have_it_is_asked(monkeypatch: pytest.MonkeyPatch, known: dict[str, Any]) -> None:
    assert run(monkeypatch, lengths={TOKEN: 64}, known=known)["secrets"] == {TOKEN: "of the host"}


def test_one_that_no_host_has_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"head": {"/etc/dgxspark/api-key": "1"}, "worker": {}}
    first = run(monkeypatch, lengths={TOKEN: 64}, known=known)
    assert first["changed"] and len(first["secrets"][TOKEN]) == 64
    assert run(monkeypatch, lengths={TOKEN: 64}, known=known)["secrets"] != first["secrets"]
    assert run(monkeypatch, check_mode=True, lengths={TOKEN: 64}, known=known)["secrets"] == {}


def test_a_short_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnsibleActionFail, match="at least 32 characters"):
        run(monkeypatch, lengths={TOKEN: 16})
