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
  - The head downloads a model that it lacks with the hub's own library. The others fetch each file as soon as it is complete.
  - A snapshot in a cache of the hub is a model folder like any other, and its links stay links.
  - Needs a fork for every host (C(forks) in the configuration of Ansible) and C(rsync) on all hosts when there is more than one.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.transfer
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
  workers:
    description: Names of the hosts that fetch to their fabric addresses.
    type: dict
    default: {}
  port:
    description: TCP port on which hosts report to the head.
    type: int
    required: true
  rsync_port:
    description: TCP port of the rsync daemon on the head.
    type: int
    required: true
  repository:
    description: Name of the model on the Hugging Face hub, from which the head downloads it when its folder is not complete.
    type: str
  revision:
    description: Branch, tag or commit of the repository. The default is its main branch.
    type: str
  source:
    description:
      - Where the head gets the model when its folder is not complete, instead of the hub. A URL is that of a mirror
        (C(HF_ENDPOINT)), an absolute path that of a folder with the complete model on the head, such as a mounted share.
    type: str
  hub_token:
    description: Token for the hub. The default is what C(hf auth login) has stored for C(root) on the head.
    type: str
  library_folder:
    description: Folder of the Python package C(huggingface_hub) on the head. One that Python finds otherwise is used, too.
    type: path
    default: /opt/dgxspark/hub
  checksum:
    description:
      - Whether the SHA-256 of each file is compared, on the head with the hub's own where it is known, on the others with the
        head's. It reads the whole model on every host.
    type: bool
    default: false
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
  description: Size of the files that differ and were or would be copied to this host.
  returned: always
  type: int
bytes_received:
  description: Bytes that came over the fabric.
  returned: always
  type: int
copy_seconds:
  description: How long that took.
  returned: always
  type: float
seconds:
  description: How long it took in all, from the start of the module.
  returned: always
  type: float
repaired:
  description: Paths that the engine's container could not read and that were opened to it, or would be in check mode.
  returned: always
  type: list
  elements: str
"""

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._hub_cache import mount_of
from ansible_collections.dgxspark.serving.plugins.module_utils._hub_download import (
    HUB_LIBRARY_FOLDER,
    HubSource,
    copy_from,
    download,
    size_at,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import (
    ModelFolder,
    ModelFolderError,
    differing_facts,
    examine,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import RendezvousError, Target
from ansible_collections.dgxspark.serving.plugins.module_utils._transfer_module import run_transfer
from ansible_collections.dgxspark.serving.plugins.module_utils._weights_sync import (
    Offering,
    Staged,
    Ways,
    fetch,
    open_to_container,
    serve,
    verified,
)


class _Head:
    """What the head does: have the model, from its source if need be."""

    def __init__(self, module: AnsibleModule, progress: Progress) -> None:
        self.options, self.check_mode, self.progress = module.params, module.check_mode, progress
        self.folder = self.options["folder"].rstrip("/")
        self.bytes_obtained = 0
        self.repaired: tuple[str, ...] = ()

    def run(self) -> dict[str, Any]:
        options = self.options
        ways = Ways(options["address"], (options["port"], options["rsync_port"]), options["token"], options["workers"])
        model, reports = serve(self.folder, ways, self.obtain)
        failed = {name: report["failed"] for name, report in reports.items() if report.get("failed")}
        if failed:
            raise ModelFolderError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
        return _result(Staged(bool(self.bytes_obtained or self.repaired), self.bytes_obtained, model, 0, self.repaired))

    def obtain(self, offering: Offering) -> tuple[ModelFolder, Mapping[str, str]]:
        try:
            model = examine(self.folder)
        except ModelFolderError as problem:
            model = self._from_source(offering, problem)
        differences = differing_facts(model.config, self.options["facts"])
        if differences:
            raise ModelFolderError(
                f"{self.folder}/config.json does not describe the planned model: {'; '.join(differences)}. "
                "Correct the preset (spark_preset_overrides.model) or spark_model_folder."
            )
        if self.folder and model.files:
            self.repaired = open_to_container(mount_of(self.folder), self.check_mode)
        sums: Mapping[str, str] = {}
        if self.options["checksum"] and model.files:
            self.progress.enter("comparing checksums")
            sums = verified(self.folder, model)
        return model, sums

    def _from_source(self, offering: Offering, problem: ModelFolderError) -> ModelFolder:
        options = self.options
        source = options["source"] or ""
        local = source if source.startswith("/") else ""
        if not local and not options["repository"]:
            raise ModelFolderError(f"{problem} No source is set from which it could be had (spark_model_source).")
        hub = HubSource(
            options["repository"] or "",
            options["revision"] or "",
            "" if local else source,
            options["hub_token"] or "",
            options["library_folder"],
        )
        if self.check_mode:
            size = examine(local).size if local else size_at(hub)
            self.bytes_obtained = offering.total = size
            # What the plan says of it is compared when it is there.
            return ModelFolder({}, {}, "")

        def note_total(total: int) -> None:
            offering.total = self.bytes_obtained = total

        if local:
            copy_from(local, self.folder, self.progress, note_total)
        else:
            download(hub, self.folder, self.progress, note_total)
        return examine(self.folder)


def _result(staged: Staged) -> dict[str, Any]:
    model = staged.model
    return {
        "changed": staged.changed,
        "digest": model.digest if model else "",
        "size_bytes": model.size if model else 0,
        "bytes_to_copy": staged.bytes_to_copy,
        "bytes_received": staged.bytes_received,
        "repaired": list(staged.repaired),
        "copy_seconds": round(staged.copy_seconds, 2),
    }


def _run(module: AnsibleModule, progress: Progress) -> dict[str, Any]:
    options = module.params
    if options["role"] == "head":
        return _Head(module, progress).run()
    target = Target(options["name"], options["address"], options["port"], options["token"])
    folder = options["folder"].rstrip("/")
    return _result(fetch(folder, target, options["rsync_port"], options["token"], module.check_mode, progress))


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
            "repository": {"type": "str"},
            "revision": {"type": "str"},
            "source": {"type": "str"},
            "hub_token": {"type": "str", "no_log": True},
            "library_folder": {"type": "path", "default": HUB_LIBRARY_FOLDER},
            "checksum": {"type": "bool", "default": False},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    run_transfer(module, _run, (ModelFolderError, RendezvousError))


if __name__ == "__main__":
    main()
