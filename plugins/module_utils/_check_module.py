# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How a module that checks something ends.

PRIVATE to this collection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import Finding, as_dicts, describe, refused


def finish(module: AnsibleModule, findings: Iterable[Finding], **results: Any) -> NoReturn:
    """Return everything; fail when there are findings of a severity in O(fail_on), with all results as well."""
    findings = list(findings)
    results["findings"] = as_dicts(findings)
    refusals = refused(findings, module.params["fail_on"])
    if refusals:
        results["msg"] = describe(refusals)
        module.fail_json(**results)
    module.exit_json(**results)
    raise AssertionError("exit_json returned")
