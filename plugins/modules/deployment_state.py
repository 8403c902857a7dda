#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: deployment_state
short_description: Compare a host with the plan of a deployment
version_added: 0.1.0
description:
  - Says whether files, units, containers, image and model of a host are what a deployment would make of them.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
options:
  files:
    description: Path to the content that it must have.
    type: dict
    required: true
  services:
    description: Systemd unit to the name of the container that it runs, empty for one that runs none. The unit must be active and enabled.
    type: dict
    required: true
  image:
    description: Reference of the image.
    type: str
    required: true
  image_id:
    description: Id that the image must have.
    type: str
    required: true
  model_folder:
    description: Folder of the model, compared with what the last accepted deployment noted.
    type: path
    required: true
  secrets:
    description: Files of secrets whose digests are wanted, for RV(secrets).
    type: list
    elements: path
    default: []
  health_url:
    description: Health page of the engine on this host, for RV(answers). An engine that was started a moment ago does not answer yet.
    type: str
    default: ""
  model_facts:
    description: What the preset says of the model (architecture and so on), for RV(staged).
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Is this worker converged?
  dgxspark.serving.deployment_state:
    files: "{{ rendered_files }}"
    services:
      dgxspark-ray.service: dgxspark-ray
    image: vllm-node:0.32
    image_id: sha256:0b1c...
    model_folder: /srv/models/Qwen3.5-122B-A10B-FP8
  become: true
"""

RETURN = r"""
answers: {description: Whether O(health_url) was answered with status 200., returned: with O(health_url), type: bool}
converged: {description: Whether nothing differs., returned: always, type: bool}
differences:
  description: What differs, a phrase each.
  returned: always
  type: list
  elements: str
  sample: [dgxspark-ray.service does not run]
secrets:
  description: SHA-256 of each file in O(secrets) that is there. It tells whether hosts have the same secret, and not which.
  returned: always
  type: dict
staged:
  description:
    - What M(dgxspark.serving.staging) need not copy, C(image) (C(identity) and C(names)) and C(model) (C(digest) and C(size) in bytes).
      Null for what is missing, damaged, another one, or not readable for the engine's container.
    - Null where nothing differs.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._deployment_state import differences
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_health import health_status
from ansible_collections.dgxspark.serving.plugins.module_utils._host_secrets import secret_digests
from ansible_collections.dgxspark.serving.plugins.module_utils._image_sync import ImageSyncError
from ansible_collections.dgxspark.serving.plugins.module_utils._staging_look import look
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import WorkloadError, once_each, run_command


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "dict", "required": True},
            "services": {"type": "dict", "required": True},
            "image": {"type": "str", "required": True},
            "image_id": {"type": "str", "required": True},
            "model_folder": {"type": "path", "required": True},
            "secrets": {"type": "list", "elements": "path", "default": [], "no_log": False},
            "model_facts": {"type": "dict", "default": {}},
            "health_url": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    options = module.params
    image, folder = options["image"], options["model_folder"].rstrip("/")
    run = once_each(run_command)
    try:
        found = differences(options["files"], options["services"], image, options["image_id"], folder, run=run)
        staged = look(image, folder, options["model_facts"], run) if found else None
        secrets = secret_digests(options["secrets"])
    except (OSError, WorkloadError, ImageSyncError) as error:
        module.fail_json(msg=str(error))
    answers = {"answers": health_status(options["health_url"]) == 200} if options["health_url"] else {}
    module.exit_json(changed=False, converged=not found, differences=found, staged=staged, secrets=secrets, **answers)


if __name__ == "__main__":
    main()
