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
  - dgxspark.serving.registry
  - dgxspark.serving.transfer
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
  workers:
    description: Names of the hosts that fetch.
    type: list
    elements: str
    default: []
  port:
    description: TCP port on which the head offers the image.
    type: int
    required: true
  source:
    description:
      - Reference in a registry from which the head pulls the image when it lacks it. Empty for an image that must be there.
      - The other hosts get it from the head while it arrives. What has arrived survives a broken run and is not fetched again.
    type: str
  digest:
    description: Digest of the manifest, index or configuration that the image must have. Empty when it is not known.
    type: str
  spool_folder:
    description: Folder of the head where layers lie from their arrival until every host has the image.
    type: path
    default: /var/lib/dgxspark/cache/images
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
replaced:
  description: Id of another image that had the name on this host before. It is kept without a name.
  returned: always
  type: str
bytes_received:
  description: Bytes of layers that were copied to this host, or would be in check mode.
  returned: always
  type: int
  sample: 3280000000
seconds:
  description: How long it took.
  returned: always
  type: float
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_python as host_python
from ansible_collections.dgxspark.serving.plugins.module_utils._image_serve import HeadTask, serve
from ansible_collections.dgxspark.serving.plugins.module_utils._image_sync import ImageSyncError, fetch
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import RendezvousError, Target
from ansible_collections.dgxspark.serving.plugins.module_utils._transfer_module import run_transfer


def _run(module: AnsibleModule, progress: Progress) -> dict[str, Any]:
    options = module.params
    if options["role"] == "worker":
        target = Target(options["name"], options["address"], options["port"], options["token"])
        fetched = fetch(options["image"], target, module.check_mode, progress)
    else:
        fetched = serve(HeadTask.of(options), module.check_mode, progress)
    return {
        "changed": fetched.changed,
        "bytes_received": fetched.bytes_received,
        "identity": fetched.identity.as_dict() if fetched.identity else None,
        "replaced": fetched.replaced,
    }


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
            "source": {"type": "str"},
            "digest": {"type": "str"},
            "registry_username": {"type": "str"},
            "registry_password": {"type": "str", "no_log": True},
            "registry_ca_path": {"type": "path"},
            "registry_plain_http": {"type": "bool", "default": False},
            "spool_folder": {"type": "path", "default": "/var/lib/dgxspark/cache/images"},
            "progress_path": {"type": "path"},
        },
        required_together=[("registry_username", "registry_password")],
        supports_check_mode=True,
    )
    if module.params["role"] == "head" and module.params["source"]:
        host_python.require_requests(module, "to talk to a registry of images")
    run_transfer(module, _run, (ImageSyncError, RendezvousError))


if __name__ == "__main__":
    main()
