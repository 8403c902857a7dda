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
    keep_secret,
    new_secret,
    read_secret,
)

# 32 letters and digits are 190 bits: more than the 128 that nobody can guess (NIST SP 800-131A).
MINIMUM_LENGTH = 32


def main() -> None:
    module = AnsibleModule(argument_spec={"lengths": {"type": "dict", "required": True}}, supports_check_mode=True)
    try:
        lengths = {path: int(length) for path, length in module.params["lengths"].items()}
    except (TypeError, ValueError) as error:
        module.fail_json(msg=f"lengths must have a number for each path: {error}")
    short = [f"{path}: {length}" for path, length in lengths.items() if length < MINIMUM_LENGTH]
    if short:
        module.fail_json(msg=f"lengths has {', '.join(short)}; a secret needs at least {MINIMUM_LENGTH} characters.")
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
