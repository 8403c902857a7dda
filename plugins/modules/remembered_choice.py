#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: remembered_choice
short_description: Remember on the head which digest and id an image had when it was chosen
version_added: 0.2.0
description:
  - A tag that was chosen once stays the same image in later runs, and an image is recognised by the digest of its registry where
    the Docker Engine does not know that digest.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Writes nothing.
  diff_mode:
    support: none
options:
  path:
    description: File on the host.
    type: path
    default: /var/lib/dgxspark/state/images.json
  image:
    description: Candidate as the preset names it. Without it the file is only read.
    type: str
  digest:
    description: Digest in the registry; empty when it is not known.
    type: str
    default: ""
  id:
    description: Id of the image.
    type: str
    default: ""
  probe:
    description: What M(dgxspark.serving.registry_probe) found, with the C(key) of what it depends on.
    type: dict
  probe_path:
    description: File on the host for O(probe).
    type: path
    default: /var/lib/dgxspark/state/probe.json
"""

EXAMPLES = r"""
- name: See what earlier runs have chosen
  dgxspark.serving.remembered_choice:
  become: true
"""

RETURN = r"""
images:
  description: C(digest) and C(id) by candidate.
  returned: always
  type: dict
"""

import json
import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._files import json_object, write_file
from ansible_collections.dgxspark.serving.plugins.module_utils._probe_memory import PROBE_FILE


def write(path: str, content: dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_file(path, json.dumps(content, indent=1, sort_keys=True).encode(), 0o600)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/var/lib/dgxspark/state/images.json"},
            "image": {"type": "str"},
            "digest": {"type": "str", "default": ""},
            "id": {"type": "str", "default": ""},
            "probe": {"type": "dict"},
            "probe_path": {"type": "path", "default": PROBE_FILE},
        },
        supports_check_mode=True,
    )
    options = module.params
    images = json_object(options["path"])
    if options["image"]:
        images[options["image"]] = {"digest": options["digest"], "id": options["id"]}
        if not module.check_mode and images != json_object(options["path"]):
            write(options["path"], images)
    if options["probe"] and not module.check_mode:
        write(options["probe_path"], options["probe"])
    # Not a change of the host: a note for the next run.
    module.exit_json(changed=False, images=images)


if __name__ == "__main__":
    main()
