#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_secrets
short_description: Make the secrets of a deployment where they are missing
version_added: 0.2.0
description:
  - For secrets that several hosts must have alike. One that a host must have alone is made there by
    M(dgxspark.serving.host_services).
  - Each secret is made on the host itself, of letters and digits, in a file that only C(root) may read. One that is there stays.
  - Returns the secrets, so that other hosts can get the same. Use it with C(no_log).
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Returns what is there. A secret that is missing is not made and not returned.
  diff_mode:
    support: none
options:
  lengths:
    description: Path of a secret to the number of its characters, at least 32.
    type: dict
    required: true
  known:
    description:
      - Host to the secrets that it has, as M(dgxspark.serving.deployment_state) returns them for each (RV(ignore:secrets)).
      - When no host has any of O(lengths), the secrets are made on the control node, and no host is asked. Give them to all hosts
        (M(dgxspark.serving.host_services)).
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Make the cluster's token on the head
  dgxspark.serving.host_secrets:
    lengths:
      /etc/dgxspark/ray-token: 64
  become: true
  no_log: true
  register: secrets
"""

RETURN = r"""
secrets: {description: Path to the secret., returned: always, type: dict}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._host_secrets import (
    checked_lengths,
    keep_secret,
    new_secret,
    read_secret,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "lengths": {"type": "dict", "required": True},
            # Of the action on the control node.
            "known": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    try:
        lengths = checked_lengths(module.params["lengths"], "lengths")
    except ValueError as error:
        module.fail_json(msg=str(error))
    secrets, changed = {}, False
    try:
        for path, length in lengths.items():
            secret = read_secret(path)
            if not secret:
                changed = True
                if module.check_mode:
                    continue
                secret = new_secret(length)
                keep_secret(path, secret)
            secrets[path] = secret
    except OSError as error:
        module.fail_json(msg=f"Cannot make a secret of the deployment: {error}")
    module.exit_json(changed=changed, secrets=secrets)


if __name__ == "__main__":
    main()
