# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What module service_teardown says of its options; what it does is tested on hosts (tests/e2e, molecule/service_teardown)."""

from __future__ import annotations

from ansible_collections.dgxspark.serving.plugins.modules import service_teardown


def test_services_of_an_accepted_deployment_are_checked_as_those_of_host_services(run_module, tmp_path):
    options = {"state": "accepted", "run": "1", "restore_seconds": 0, "restore_folder": str(tmp_path)}
    result = run_module(service_teardown, services={"programs": ["sh"]}, **options)
    assert result["failed"] and "services: value of programs must be one or more of" in result["msg"]
    result = run_module(service_teardown, services={"folders": {str(tmp_path / "new"): "rwx"}}, **options)
    assert result["failed"] and "octal mode" in result["msg"]
