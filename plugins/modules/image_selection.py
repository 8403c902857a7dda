#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: image_selection
short_description: Choose the first candidate image that can serve the model
version_added: 0.1.0
description:
  - Asks M(dgxspark.serving.registry_probe) on the head and explains each rejection in a line.
  - An action plugin on the control node that looks at the host.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Changes nothing on the hosts.
  diff_mode:
    support: none
options:
  candidates:
    description: Candidate images of the preset, best first.
    type: list
    elements: dict
    required: true
  architecture:
    description: Hugging Face name of the architecture.
    type: str
    required: true
  requirements:
    description: Dictionaries C(require) and C(prefer) of registry_probe.
    type: dict
    required: true
  reasoning_parser:
    description: Reasoning parser that the image must know.
    type: str
  tool_call_parser:
    description: Tool-call parser that the image must know.
    type: str
  head:
    description: Name of the head, for the messages.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Choose
  dgxspark.serving.image_selection:
    candidates:
      - image: vllm-node
    architecture: Qwen3_5MoeForConditionalGeneration
    requirements: {require: {ray: true}}
    head: spark-1a32
  become: true
"""

RETURN = r"""
image: {description: Reference of the chosen image., returned: always, type: str}
image_id: {description: Its id., returned: always, type: str}
rejected: {description: Rejected candidates with reason and remedy., returned: always, type: list, elements: dict}
"""
