#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: deployment_failure
short_description: End a failed run with one message, or go on with another candidate
version_added: 0.1.0
description:
  - Says at which gate and why, and what runs on each host after the rollback.
  - Fails, unless another engine or image is the remedy, there is one that may serve (O(choice)), and every host serves again what it
    served before. Then it returns what has been tried.
  - Runs on the control node.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.control_node
options:
  run:
    description: Id of the run.
    type: str
    required: true
  head:
    description: Name of the head.
    type: str
    required: true
  rollback:
    description: Whether the hosts were brought back.
    type: bool
    default: true
  choice:
    description: Result of M(dgxspark.serving.image_selection). Without it there is no other candidate.
    type: dict
    default: {}
  tried:
    description: What was tried before, image to reason.
    type: dict
    default: {}
  restore_seconds:
    description: After how many seconds a host that does not answer restores itself.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Say why
  dgxspark.serving.deployment_failure:
    run: "{{ run.run }}"
    head: spark-1a32
  run_once: true
"""

RETURN = r"""
gate: {description: Number of the gate., returned: always, type: str}
goes_on: {description: Whether another candidate may serve., returned: always, type: bool}
tried: {description: "Image to reason, with the one that failed now.", returned: always, type: dict}
"""
