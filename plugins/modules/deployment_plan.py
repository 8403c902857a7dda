#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: deployment_plan
short_description: Make the plan of a deployment
version_added: 0.1.0
description:
  - Merges the preset with the user's values and looks whether model, hosts and values fit together.
  - Runs on the control node.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.control_node
options:
  preset:
    description: Name of a preset of the collection, or path of a YAML file.
    type: str
    required: true
  overrides:
    description: Merged over the preset.
    type: dict
  model_folder:
    description: Folder of the model on every host.
    type: str
  candidates:
    description: Candidate images, best first.
    type: list
    elements: dict
  tensor_parallel:
    description: Tensor parallel size.
    type: int
  pipeline_parallel:
    description: Pipeline parallel size.
    type: int
  utilization:
    description: Share of a host's memory for the engine.
    type: float
  max_model_len:
    description: Tokens of context.
    type: int
  backend:
    description: How the ranks are brought together.
    type: str
    default: ray
  unlisted_holders:
    description: What to do with a holder that is on neither list.
    type: str
    default: fail
  api_bind:
    description: Address on which the API listens.
    type: str
  api_port:
    description: Port on which the API listens.
    type: int
    default: 8000
  rollback:
    description: Whether a failure brings back what ran before.
    type: bool
    default: true
  restore_seconds:
    description: Seconds without a sign of the run after which a host brings back by itself what ran before.
    type: int
    default: 300
  firewall:
    description: Whether the ports of Ray, rendezvous and engine are closed to everything but the hosts' fabric addresses.
    type: bool
    default: true
  open_ports:
    description:
      - TCP ports that O(firewall) leaves alone, for a service that listens where Ray or the engine may.
      - Those of the API and of SSH, which are 22 and what C(ansible_port) says, are always left alone.
    type: list
    elements: int
    default: []
  stop:
    description: The user's stop list.
    type: dict
  keep:
    description: The user's keep-list.
    type: dict
"""

EXAMPLES = r"""
- name: Plan
  dgxspark.serving.deployment_plan:
    preset: qwen35_122b_fp8
  register: plan
"""

RETURN = r"""
hosts: {description: All hosts with rank and addresses., returned: success, type: list, elements: dict}
host: {description: This host's own entry., returned: success, type: dict}
world_size: {description: Number of ranks., returned: success, type: int, sample: 2}
engine_arguments: {description: Arguments of vllm serve., returned: success, type: list, elements: str}
"""
