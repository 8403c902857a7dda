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
  - Candidates that the head lacks are looked at in their registry, without pulling them, until one is chosen.
  - An action plugin on the control node that looks at the host.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.control_node
  - dgxspark.serving.registry
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
  backend:
    description:
      - With what the ranks are brought together, V(ray), V(mp) or V(auto). With V(auto) an image without Ray is taken with V(mp).
    type: str
    default: ray
  allow_unpinned:
    description:
      - Whether an image that the head lacks may be pulled by a tag. Otherwise its candidate must carry a C(digest). A tag that was
        chosen once stays the same image in later runs.
    type: bool
    default: false
  prefer_local:
    description: Whether images that the head has go before those that would be pulled, whatever the order.
    type: bool
    default: false
  machines:
    description: Architecture of each host, as C(uname -m) says. They must be the same.
    type: dict
    default: {}
  tried:
    description: Images that did not serve in this run, by their names on the hosts, and why. They are not chosen again.
    type: dict
    default: {}
  remembered:
    description:
      - What earlier runs have chosen, as M(dgxspark.serving.host_survey) returns it. Without it the head is asked.
    type: dict
  present:
    description:
      - Candidates that the head has, C(survey.images) of M(dgxspark.serving.host_survey). With it, what was found in them is kept on
        the head, and they are looked into again only when they, what is asked of them or this collection have changed.
    type: dict
  probed:
    description: What was kept, C(survey.probed) of M(dgxspark.serving.host_survey).
    type: dict
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
backend: {description: With what it serves., returned: always, type: str}
pinned: {description: Digest or id that stands for it in this run., returned: always, type: str}
pull: {description: "What to pull: C(source), a reference by digest, and C(digest). Empty for an image that is there.", returned: always, type: dict}
size: {description: Bytes to pull., returned: always, type: int}
others:
  description: Images after it that may serve, too, by their names on the hosts. Those that are not there have not been looked at.
  returned: always
  type: list
  elements: str
rejected: {description: Rejected candidates with reason and remedy., returned: always, type: list, elements: dict}
"""
