#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: staging_look
short_description: See whether a host has the image and the model already
version_added: 0.2.0
description:
  - What is missing, damaged, another one, or not readable for the engine's container counts as not there.
    M(dgxspark.serving.image_sync) and M(dgxspark.serving.model_weights) repair it or say what is wrong.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
options:
  image:
    description: Reference of the image.
    type: str
    required: true
  folder:
    description: Folder of the model.
    type: path
    required: true
  facts:
    description: What the preset says of the model (architecture and so on). It must fit the C(config.json).
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Is anything to be copied?
  dgxspark.serving.staging_look:
    image: vllm-node:0.32
    folder: /srv/models/Qwen3.5-122B-A10B-FP8
  become: true
"""

RETURN = r"""
image: {description: C(identity) and C(names) of the image. Null without it., returned: always, type: dict}
model: {description: C(digest) and C(size) in bytes of the model. Null without it., returned: always, type: dict}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._staging_look import look


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "folder": {"type": "path", "required": True},
            "facts": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    options = module.params
    module.exit_json(changed=False, **look(options["image"], options["folder"].rstrip("/"), options["facts"]))


if __name__ == "__main__":
    main()
