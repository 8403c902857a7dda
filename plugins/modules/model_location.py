#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_location
short_description: Find where a host has a model already
version_added: 0.2.0
description:
  - Looks whether a model folder is complete. If it is not, looks for a complete snapshot of the repository in the caches of the
    Hugging Face hub on the host, so that it can be used where it is.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Changes nothing on the host.
  diff_mode:
    support: none
options:
  folder:
    description: Folder in which the model should be.
    type: path
    required: true
  repository:
    description: Name of the model on the hub. Without it no cache is looked at.
    type: str
  caches:
    description: Patterns of folders of hub caches. The default is that of C(root) and of all users.
    type: list
    elements: str
    default: [/root/.cache/huggingface/hub, /home/*/.cache/huggingface/hub]
"""

EXAMPLES = r"""
- name: See whether the head has the model
  dgxspark.serving.model_location:
    folder: /srv/models/Qwen3.5-122B-A10B-FP8
    repository: Qwen/Qwen3.5-122B-A10B-FP8
  become: true
"""

RETURN = r"""
folder: {description: Where the model is or should be., returned: always, type: str}
mount:
  description: What a container must see of the host. For a snapshot in a hub cache it is the folder of the repository.
  returned: always
  type: str
complete: {description: Whether the model is complete there., returned: always, type: bool}
problem: {description: What O(folder) lacks., returned: always, type: str}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._hub_cache import CACHES, find_complete, mount_of
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import ModelFolderError, examine


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "repository": {"type": "str"},
            "caches": {"type": "list", "elements": "str", "default": list(CACHES)},
        },
        supports_check_mode=True,
    )
    folder, problem = module.params["folder"], ""
    try:
        examine(folder)
    except (ModelFolderError, OSError) as error:
        problem = str(error)
    if problem and module.params["repository"]:
        found = find_complete(module.params["repository"], module.params["caches"])
        if found:
            module.exit_json(changed=False, folder=found.folder, mount=found.mount, complete=True, problem=problem)
    module.exit_json(changed=False, folder=folder, mount=mount_of(folder), complete=not problem, problem=problem)


if __name__ == "__main__":
    main()
