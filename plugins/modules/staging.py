#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: staging
short_description: Bring image and weights to every host at the same time, and say how far it is
version_added: 0.2.0
description:
  - Runs M(dgxspark.serving.image_sync) and M(dgxspark.serving.model_weights) on the host in the background, side by side, and
    prints bytes, rate and time left.
  - Runs on all hosts in the same task, so it needs a fork for every host.
  - An action plugin on the control node. What it starts on a host ends with the run.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Says what would be moved, with sizes.
  diff_mode:
    support: none
options:
  host:
    description: Name of the host, for the lines that are printed.
    type: str
    required: true
  hosts:
    description: Names of all hosts.
    type: list
    elements: str
    required: true
  head:
    description: Name of the head.
    type: str
    required: true
  looks:
    description:
      - Name of a host to what it has, RV(dgxspark.serving.deployment_state#module:staged). Where all have everything, nothing is
        started on the hosts.
    type: dict
    default: {}
  run:
    description: Id of the run.
    type: str
    required: true
  image:
    description: Options of M(dgxspark.serving.image_sync).
    type: dict
    required: true
  weights:
    description: Options of M(dgxspark.serving.model_weights).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Stage
  dgxspark.serving.staging:
    host: "{{ inventory_hostname }}"
    hosts: [spark-1a32, spark-5c0e]
    head: spark-1a32
    run: "{{ run }}"
    image: {image: "vllm-node:0.32", role: head, name: spark-1a32, address: 192.168.200.12, port: 20110, token: "{{ token }}"}
    weights: {folder: /srv/models/m, role: head, name: spark-1a32, address: 192.168.200.12, port: 20113, rsync_port: 20111, token: "{{ token }}"}
  become: true
"""

RETURN = r"""
image: {description: Result of image_sync., returned: always, type: dict}
weights: {description: Result of model_weights., returned: always, type: dict}
digest: {description: Digest of the model., returned: always, type: str}
seconds: {description: How long it took., returned: when not in check mode, type: float}
"""
