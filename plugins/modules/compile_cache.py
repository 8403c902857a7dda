#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: compile_cache
short_description: Have a folder for compiled kernels, and keep all such folders within a limit
version_added: 0.2.0
description:
  - Compilers of an engine (torch, Triton, FlashInfer, CUDA) keep what they made for the next start. Each image, GPU and driver has
    a folder of its own (filter P(dgxspark.serving.compile_cache_folder#filter)).
  - When all of them together are larger than the limit, those that were not used for the longest time are removed. Call it while the
    engine is stopped.
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
  path:
    description: The folder that is about to be used.
    type: path
    required: true
  limit_gib:
    description: GiB for it and all folders beside it.
    type: float
    default: 20.0
"""

EXAMPLES = r"""
- name: Have the folder of the compiled kernels
  dgxspark.serving.compile_cache:
    path: "{{ memory.gpus | dgxspark.serving.compile_cache_folder(image_id) }}"
  become: true
"""

RETURN = r"""
removed: {description: Folders that were removed., returned: always, type: list, elements: str}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._compile_cache import prepare, to_be_removed
from ansible_collections.dgxspark.serving.plugins.module_utils._host_disks import GIB


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "limit_gib": {"type": "float", "default": 20.0},
        },
        supports_check_mode=True,
    )
    path, limit = module.params["path"], module.params["limit_gib"]
    if limit <= 0:
        module.fail_json(msg=f"limit_gib is {limit:g}; it must be larger than 0.")
    try:
        removed = to_be_removed(path, int(limit * GIB))
        changed = bool(removed) or not os.path.isdir(path)
        if not module.check_mode:
            prepare(path, removed)
    except OSError as error:
        module.fail_json(msg=f"The folder {path} of the compiled kernels cannot be made: {error}")
    module.exit_json(changed=changed, removed=removed)


if __name__ == "__main__":
    main()
