#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: deployment_status
short_description: What a host serves, what it could go back to, and what happened last
version_added: 0.2.0
description:
  - Looks at units, containers, memory, the accepted deployment, the restore points and the last restore of a host. Changes nothing.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
options:
  log_lines:
    description: How many of the last lines of each unit's journal to return.
    type: int
    default: 5
seealso:
  - module: dgxspark.serving.status_report
"""

EXAMPLES = r"""
- name: What runs here?
  dgxspark.serving.deployment_status:
  become: true
  register: status
"""

RETURN = r"""
status:
  description: What was found.
  returned: success
  type: dict
  contains:
    deployment: {description: The accepted deployment. Empty where there is none., type: dict, returned: always}
    canary: {description: What the canary said last. Empty where there is none., type: dict, returned: always}
    units: {description: Units of this collection with state and last lines., type: list, elements: dict, returned: always}
    containers: {description: Containers of this collection., type: list, elements: dict, returned: always}
    memory: {description: Total and available memory in GiB., type: dict, returned: always}
    restore_points: {description: What the host can go back to and when each was written., type: list, elements: dict, returned: always}
    run_at_work: {description: The run that has stopped services here and has not ended. Null where there is none., type: dict, returned: always}
    last_restore: {description: What was brought back last and why. Null where nothing was., type: dict, returned: always}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._deployment_status import look
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import WorkloadError


def main() -> None:
    module = AnsibleModule(argument_spec={"log_lines": {"type": "int", "default": 5}}, supports_check_mode=True)
    try:
        module.exit_json(changed=False, status=look(module.params["log_lines"]))
    except PermissionError as error:
        module.fail_json(msg=f"Root's rights are needed to read {error.filename}: use become (--ask-become-pass).")
    except WorkloadError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
