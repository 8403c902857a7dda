#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_services
short_description: Bring files, programs and units of a deployment to a host in one call
version_added: 0.2.0
description:
  - Makes folders, writes files and the programs that the host runs without a control node, and enables and starts units.
  - Everything is compared first. A host that has it all is not changed, and systemd is not asked to read its units anew.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Secrets and programs are not shown.
options:
  folders:
    description: Path to the mode of a folder that must exist, as a string with an octal number.
    type: dict
    default: {}
  files:
    description: Path to the content of a file, which gets mode C(0644).
    type: dict
    default: {}
  initial_files:
    description: Path to the content of a file that is written only where it is missing. It gets mode C(0640).
    type: dict
    default: {}
  secrets:
    description: Path to a secret that only C(root) may read.
    type: dict
    default: {}
  programs:
    description:
      - Programs of this collection, each one file in C(/opt/dgxspark/lib) that needs only Python.
      - V(dgxspark-memguard) ends the engine before the host runs out of memory, V(dgxspark-canary) asks it for a token,
        V(dgxspark-await-ray) waits for all nodes of Ray, V(dgxspark-mp-rank) keeps the ranks together where there is no Ray.
    type: list
    elements: str
    choices: [dgxspark-await-ray, dgxspark-canary, dgxspark-memguard, dgxspark-mp-rank]
    default: []
  compile_cache:
    description:
      - Folder for kernels that the engine compiles (filter P(dgxspark.serving.compile_cache_folder#filter)).
      - When all folders beside it together are larger than O(compile_cache_gib), those that were not used for the longest time are
        removed. Have no engine running then.
    type: path
  compile_cache_gib:
    description: GiB for O(compile_cache) and all folders beside it.
    type: float
    default: 20.0
  units:
    description: Systemd units that must be enabled and active. They are started in one transaction, whose order is that of their files.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Start the memory guard
  dgxspark.serving.host_services:
    folders:
      /etc/dgxspark: "0750"
    files:
      /etc/systemd/system/dgxspark-memguard.service: "{{ lookup('ansible.builtin.template', 'dgxspark-memguard.service.j2') }}"
    programs:
      - dgxspark-memguard
    units:
      - dgxspark-memguard.service
  become: true
"""

RETURN = r"""
written: {description: Folders and files that were written., returned: always, type: list, elements: str}
removed: {description: Folders of compiled kernels that were removed., returned: always, type: list, elements: str}
start_seconds: {description: How long systemd took to start them., returned: always, type: float}
started: {description: Units that were enabled or started., returned: always, type: list, elements: str}
"""

import os
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils import _await_ray, _canary, _memguard, _mp_rank
from ansible_collections.dgxspark.serving.plugins.module_utils._compile_cache import prepare, to_be_removed
from ansible_collections.dgxspark.serving.plugins.module_utils._host_disks import GIB
from ansible_collections.dgxspark.serving.plugins.module_utils._host_program import (
    ProgramError,
    install_program,
    is_installed,
    program_path,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._host_services import (
    bring_up,
    file_changes,
    folder_changes,
    make_folders,
    units_to_start,
    write_changes,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import WorkloadError

PROGRAMS = {item.PROGRAM: item for item in (_await_ray, _canary, _memguard, _mp_rank)}


def _modes(folders: dict[str, Any]) -> dict[str, int]:
    return {path: int(str(mode), 8) for path, mode in folders.items()}


def run(module: AnsibleModule) -> dict[str, Any]:
    options = module.params
    folders = _modes(options["folders"])
    programs = {name: PROGRAMS[name] for name in options["programs"] if not is_installed(name, PROGRAMS[name])}
    files = file_changes(options["files"], options["initial_files"], options["secrets"])
    cache = options["compile_cache"]
    removed = to_be_removed(cache, int(options["compile_cache_gib"] * GIB)) if cache else []
    written = folder_changes(folders) + [change.path for change in files] + [program_path(name) for name in programs]
    if cache and not os.path.isdir(cache):
        written.append(cache)
    started = units_to_start(options["units"])
    seconds = 0.0
    if not module.check_mode:
        make_folders(folders)
        write_changes(files)
        for name, source in programs.items():
            install_program(name, source)
        if cache:
            prepare(cache, removed)
        began = time.monotonic()
        if started or any(change.path.startswith("/etc/systemd/") for change in files):
            bring_up(started)
        seconds = time.monotonic() - began
    return {
        "changed": bool(written or removed or started),
        "written": written,
        "removed": removed,
        "started": started,
        "start_seconds": round(seconds, 1),
        "diff": [change.diff() for change in files if not change.secret],
    }


def main() -> None:
    texts: dict[str, Any] = {"type": "dict", "default": {}}
    module = AnsibleModule(
        argument_spec={
            "folders": texts,
            "files": texts,
            "initial_files": texts,
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "programs": {"type": "list", "elements": "str", "choices": list(PROGRAMS), "default": []},
            "compile_cache": {"type": "path"},
            "compile_cache_gib": {"type": "float", "default": 20.0},
            "units": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    if module.params["compile_cache_gib"] <= 0:
        module.fail_json(msg=f"compile_cache_gib is {module.params['compile_cache_gib']:g}; it must be larger than 0.")
    try:
        result = run(module)
    except (OSError, ProgramError, WorkloadError, ValueError) as error:
        module.fail_json(msg=f"Cannot bring the deployment's services to this host: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
