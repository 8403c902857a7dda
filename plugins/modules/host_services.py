#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_services
short_description: Bring files, programs and units of a deployment to a host in one call
version_added: 0.2.0
description:
  - Makes folders, writes files and the programs that the host runs without a control node, and enables and starts units.
  - Everything is compared first. A host that has it all is not changed, and systemd is not asked to read its units anew.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Secrets and programs are not shown.
options:
  folders:
    description: Path to the mode of a folder that must exist, as a string with an octal number.
    type: dict
    default: {}
  files:
    description: Path to the content of a file, which gets mode C(0644).
    type: dict
    default: {}
  initial_files:
    description: Path to the content of a file that is written only where it is missing. It gets mode C(0640).
    type: dict
    default: {}
  secrets:
    description: Path to a secret that only C(root) may read.
    type: dict
    default: {}
  own_secrets:
    description:
      - Path to the number of characters of a secret that this host must have for itself, at least 32. One that is missing is made
        here, of letters and digits, for C(root) only, and is not returned.
    type: dict
    default: {}
  programs:
    description:
      - Programs of this collection, each one file in C(/opt/dgxspark/lib) that needs only Python.
      - V(dgxspark-memguard) ends the engine before the host runs out of memory, V(dgxspark-canary) asks it for a token,
        V(dgxspark-await-ray) waits for all nodes of Ray, V(dgxspark-mp-rank) keeps the ranks together where there is no Ray.
    type: list
    elements: str
    choices: [dgxspark-await-ray, dgxspark-canary, dgxspark-memguard, dgxspark-mp-rank]
    default: []
  compile_cache:
    description:
      - Folder for kernels that the engine compiles (filter P(dgxspark.serving.compile_cache_folder#filter)).
      - When all folders beside it together are larger than O(compile_cache_gib), those that were not used for the longest time are
        removed. Have no engine running then.
    type: path
  compile_cache_gib:
    description: GiB for O(compile_cache) and all folders beside it.
    type: float
    default: 20.0
  units:
    description: Systemd units that must be enabled and active. They are started in one transaction, whose order is that of their files.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Start the memory guard
  dgxspark.serving.host_services:
    folders:
      /etc/dgxspark: "0750"
    files:
      /etc/systemd/system/dgxspark-memguard.service: "{{ lookup('ansible.builtin.template', 'dgxspark-memguard.service.j2') }}"
    programs:
      - dgxspark-memguard
    units:
      - dgxspark-memguard.service
  become: true
"""

RETURN = r"""
written: {description: Folders and files that were written., returned: always, type: list, elements: str}
removed: {description: Folders of compiled kernels that were removed., returned: always, type: list, elements: str}
start_seconds: {description: How long systemd took to start them., returned: always, type: float}
started: {description: Units that were enabled or started., returned: always, type: list, elements: str}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._bring_services import (
    BringError,
    bring_services,
    services_arguments,
)


def main() -> None:
    module = AnsibleModule(argument_spec=services_arguments(), supports_check_mode=True)
    try:
        result = bring_services(module.params, module.check_mode)
    except BringError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
