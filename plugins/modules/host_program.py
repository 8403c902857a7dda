#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_program
short_description: Install a program that a host runs without a control node
version_added: 0.1.0
description:
  - Writes a program of this collection to C(/opt/dgxspark/lib), one file that needs only Python. Units run it.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  name:
    description: V(dgxspark-memguard) ends the engine before the host runs out of memory, V(dgxspark-canary) asks it for a token.
    type: str
    choices: [dgxspark-await-ray, dgxspark-canary, dgxspark-memguard]
    required: true
"""

EXAMPLES = r"""
- name: Bring the memory guard
  dgxspark.serving.host_program:
    name: dgxspark-memguard
  become: true
"""

RETURN = r"""
path: {description: Where the program is., returned: always, type: str, sample: /opt/dgxspark/lib/dgxspark-memguard.pyz}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils import _await_ray, _canary, _memguard
from ansible_collections.dgxspark.serving.plugins.module_utils._host_program import (
    ProgramError,
    install_program,
    program,
    program_path,
)

PROGRAMS = {item.PROGRAM: item for item in (_await_ray, _canary, _memguard)}


def is_installed(name: str) -> bool:
    try:
        with open(program_path(name), "rb") as handle:
            return handle.read() == program(PROGRAMS[name])
    except OSError:
        return False


def main() -> None:
    module = AnsibleModule(
        argument_spec={"name": {"type": "str", "required": True, "choices": list(PROGRAMS)}}, supports_check_mode=True
    )
    name = module.params["name"]
    try:
        changed = not is_installed(name) if module.check_mode else install_program(name, PROGRAMS[name])
    except (OSError, ProgramError) as error:
        module.fail_json(msg=f"Cannot install {name}: {error}")
    module.exit_json(changed=changed, path=program_path(name))


if __name__ == "__main__":
    main()
