# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What module service_teardown says of its options; what it does is tested on hosts (tests/e2e, molecule/service_teardown)."""

from __future__ import annotations

from ansible_collections.dgxspark.serving.plugins.module_utils._rank_snapshot import UnitState
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import deployed_run
from ansible_collections.dgxspark.serving.plugins.modules import service_teardown


def test_services_of_an_accepted_deployment_are_checked_as_those_of_host_services(run_module, tmp_path):
    options = {"state": "accepted", "run": "1", "restore_seconds": 0, "restore_folder": str(tmp_path)}
    result = run_module(service_teardown, services={"programs": ["sh"]}, **options)
    assert result["failed"] and "services: value of programs must be one or more of" in result["msg"]
    result = run_module(service_teardown, services={"folders": {str(tmp_path / "new"): "rwx"}}, **options)
    assert result["failed"] and "octal mode" in result["msg"]


def test_a_rank_that_has_died_is_not_accepted(run_module, monkeypatch, tmp_path):
    dead = UnitState("dgxspark-ray.service", "failed", "failed", "exit-code", 0)
    monkeypatch.setattr(service_teardown, "unit_states", lambda names: [dead])
    noted = []
    monkeypatch.setattr(service_teardown, "_note", noted.append)
    options = {"state": "accepted", "run": "1", "restore_seconds": 0, "restore_folder": str(tmp_path)}
    result = run_module(service_teardown, active_units=["dgxspark-ray.service"], deployment={"run": "1"}, **options)
    assert result["failed"] and "dgxspark-ray.service is failed (exit-code)" in result["msg"]
    assert noted == []


def test_a_run_that_was_accepted_here_can_still_be_undone(run_module, monkeypatch, tmp_path):
    """It had nothing to stop, so there is neither a record nor a lease any more; another host has not accepted it."""
    run_file = tmp_path / "run.env"
    run_file.write_text("DGXSPARK_RUN=20261201T101500-3f6c\n", encoding="utf-8")
    monkeypatch.setattr(service_teardown, "deployed_run", lambda: deployed_run(str(run_file)))
    monkeypatch.setattr(service_teardown._restore_program, "deployed_run", lambda: deployed_run(str(run_file)))
    monkeypatch.setattr(service_teardown, "_ours", lambda: ["unit dgxspark-ray.service"])
    options = {"state": "restored", "restore_folder": str(tmp_path), "check_mode": True}
    assert run_module(service_teardown, run="20261201T101500-3f6c", **options)["removed"] == [
        "unit dgxspark-ray.service"
    ]
    assert run_module(service_teardown, run="another", **options)["changed"] is False
