#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_sync
short_description: Have the head's image on every host, copied over the fabric
version_added: 0.1.0
description:
  - Runs on all hosts in the same task. The head offers the image on its fabric address for the time of the task, the other
    hosts load it if they lack it. No file is written in between and no host needs the internet.
  - Afterwards all hosts have the same layers under the same name, or the module fails.
  - Needs a fork for every host (C(forks) in the configuration of Ansible).
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Compares the images and says what would be copied.
  diff_mode:
    support: none
options:
  image:
    description: Reference of the image on the head.
    type: str
    required: true
  role:
    description: Whether this host offers the image (V(head)) or fetches it (V(worker)).
    type: str
    choices: [head, worker]
    required: true
  name:
    description: Name of this host, under which it reports to the head.
    type: str
    required: true
  workers:
    description: Names of the hosts that fetch.
    type: list
    elements: str
    default: []
  address:
    description: Address of the head on the fabric.
    type: str
    required: true
  port:
    description: TCP port on which the head offers the image.
    type: int
    required: true
  token:
    description: Secret of the run that hosts show each other.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: The same image on all hosts
  dgxspark.serving.image_sync:
    image: vllm-node:0.32
    role: "{{ 'head' if inventory_hostname in groups['head'] else 'worker' }}"
    name: "{{ inventory_hostname }}"
    workers: "{{ groups['worker'] }}"
    address: 192.168.200.12
    port: 20110
    token: "{{ run_token }}"
  become: true
"""

RETURN = r"""
identity:
  description: Layers and id of the image on this host. Null in check mode on a host that lacks it.
  returned: always
  type: dict
bytes_received:
  description: Bytes that were copied to this host, or the image's size in check mode.
  returned: always
  type: int
  sample: 3280000000
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._image_sync import (
    ImageSyncError,
    fetch,
    image_identity,
    serve,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import RendezvousError, Target


def _run(module: AnsibleModule) -> dict[str, Any]:
    image, port, token = module.params["image"], module.params["port"], module.params["token"]
    if module.params["role"] == "worker":
        target = Target(module.params["name"], module.params["address"], port, token)
        fetched = fetch(image, target, module.check_mode)
        return {
            "changed": fetched.changed,
            "bytes_received": fetched.bytes_received,
            "identity": fetched.identity.as_dict() if fetched.identity else None,
        }
    identity = image_identity(image)
    if identity is None:
        raise ImageSyncError(f"Image {image} is not on this host any more.")
    if module.params["workers"]:
        reports = serve(image, identity, module.params["address"], port, token, module.params["workers"])
        failed = {name: report["failed"] for name, report in reports.items() if report.get("failed")}
        if failed:
            raise ImageSyncError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    return {"changed": False, "bytes_received": 0, "identity": identity.as_dict()}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "role": {"type": "str", "choices": ["head", "worker"], "required": True},
            "name": {"type": "str", "required": True},
            "workers": {"type": "list", "elements": "str", "default": []},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "token": {"type": "str", "required": True, "no_log": True},
        },
        supports_check_mode=True,
    )
    try:
        result = _run(module)
    except (ImageSyncError, RendezvousError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
