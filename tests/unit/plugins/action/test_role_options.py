# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a user has set of the roles is checked all at once, by the roles' own specs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase
from ansible.template import Templar, trust_as_template
from ansible_collections.dgxspark.serving.plugins.action.role_options import ROLES_FOLDER, ActionModule

ROLES = sorted(path.name for path in ROLES_FOLDER.iterdir())


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})

    def run(roles: list[str], **variables: Any) -> dict[str, Any]:
        action = object.__new__(ActionModule)
        action._task = SimpleNamespace(args={"roles": roles}, check_mode=False)
        action._loader = DataLoader()
        action._templar = Templar(loader=action._loader, variables={})
        result: dict[str, Any] = action.run(None, variables)
        return result

    return run


def test_the_defaults_of_all_roles_fit_their_specs(check: Any) -> None:
    assert check(ROLES) == {"changed": False}


def test_everything_that_cannot_be_used_is_named_at_once(check: Any) -> None:
    result = check(
        ROLES, ray_cluster_memory_floor_mib="soon", spark_allow_unpinned="perhaps", vllm_serve_canary_seconds=[1]
    )
    lines = result["msg"].splitlines()
    assert result["failed"] and len(lines) == 4
    assert lines[1].startswith("image_selection_allow_unpinned (spark_allow_unpinned): ")
    assert lines[2].startswith("ray_cluster_memory_floor_mib: ") and "soon" in lines[2]


def test_what_an_earlier_role_finds_out_is_left_to_the_role(check: Any) -> None:
    later = trust_as_template("{{ preflight_report.stop_unlisted }}")
    assert check(["service_teardown"], service_teardown_unlisted=later) == {"changed": False}


@pytest.mark.parametrize("roles", [[], ["rays"]])
def test_an_unknown_role_is_refused(check: Any, roles: list[str]) -> None:
    with pytest.raises(AnsibleActionFail, match="give a list of: host_setup, image_selection"):
        check(roles)
