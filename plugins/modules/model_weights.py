#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_weights
short_description: Have a complete model folder on every host, copied over the fabric
version_added: 0.1.0
description:
  - Judges a model folder by its index and by the header of each weights file, not by the folder's existence.
  - Runs on all hosts in the same task. The head offers its folder with an rsync daemon on its fabric address for the time of
    the task, the other hosts fetch what differs. A file that is not complete never has its final name.
  - Needs a fork for every host (C(forks) in the configuration of Ansible) and C(rsync) on all hosts when there is more than one.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Compares the folders and says what would be copied.
  diff_mode:
    support: none
options:
  folder:
    description: Folder of the model, the same on every host.
    type: path
    required: true
  facts:
    description:
      - What the plan assumes of the model's C(config.json), keys C(architecture), C(model_type), C(attention_heads),
        C(key_value_heads), C(max_position_embeddings). A difference is a failure.
    type: dict
    default: {}
  role:
    description: Whether this host offers the folder (V(head)) or fetches it (V(worker)).
    type: str
    choices: [head, worker]
    required: true
  name:
    description: Name of this host, under which it reports to the head.
    type: str
    required: true
  workers:
    description: Names of the hosts that fetch to their fabric addresses.
    type: dict
    default: {}
  address:
    description: Address of the head on the fabric.
    type: str
    required: true
  port:
    description: TCP port on which hosts report to the head.
    type: int
    required: true
  rsync_port:
    description: TCP port of the rsync daemon on the head.
    type: int
    required: true
  token:
    description: Secret of the run that hosts show each other.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: The same weights on all hosts
  dgxspark.serving.model_weights:
    folder: /srv/models/Qwen3.5-122B-A10B-FP8
    role: "{{ 'head' if inventory_hostname in groups['head'] else 'worker' }}"
    name: "{{ inventory_hostname }}"
    workers:
      spark-5be3: 192.168.200.13
    address: 192.168.200.12
    port: 20110
    rsync_port: 20111
    token: "{{ run_token }}"
  become: true
"""

RETURN = r"""
digest:
  description: Digest over names, sizes and weight headers. Empty in check mode on a host that lacks the model.
  returned: always
  type: str
size_bytes:
  description: Size of the folder.
  returned: always
  type: int
bytes_to_copy:
  description: Size of what was or would be compared and copied to this host.
  returned: always
  type: int
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import (
    ModelFolderError,
    differing_facts,
    examine,
    fetch,
    serve,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import RendezvousError, Target


def _run(module: AnsibleModule) -> dict[str, Any]:
    options = module.params
    if options["role"] == "worker":
        target = Target(options["name"], options["address"], options["port"], options["token"])
        fetched = fetch(options["folder"], target, options["rsync_port"], options["token"], module.check_mode)
        model = fetched.model
        return {
            "changed": fetched.changed,
            "digest": model.digest if model else "",
            "size_bytes": model.size if model else 0,
            "bytes_to_copy": fetched.bytes_to_copy,
        }
    model = examine(options["folder"])
    differences = differing_facts(model.config, options["facts"])
    if differences:
        raise ModelFolderError(
            f"{options['folder']}/config.json does not describe the planned model: {'; '.join(differences)}. "
            "Correct the preset (spark_preset_overrides.model) or spark_model_folder."
        )
    if options["workers"]:
        ports = (options["port"], options["rsync_port"])
        reports = serve(options["folder"], model, options["address"], ports, options["token"], options["workers"])
        failed = {name: report["failed"] for name, report in reports.items() if report.get("failed")}
        if failed:
            raise ModelFolderError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    return {"changed": False, "digest": model.digest, "size_bytes": model.size, "bytes_to_copy": 0}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "facts": {"type": "dict", "default": {}},
            "role": {"type": "str", "choices": ["head", "worker"], "required": True},
            "name": {"type": "str", "required": True},
            "workers": {"type": "dict", "default": {}},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "rsync_port": {"type": "int", "required": True},
            "token": {"type": "str", "required": True, "no_log": True},
        },
        supports_check_mode=True,
    )
    try:
        result = _run(module)
    except (ModelFolderError, RendezvousError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
