#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: deployment_summary
short_description: Print the summary of a run
version_added: 0.1.0
description:
  - Image chosen and why, what was stopped and kept, memory, Ray nodes, the answer, tokens per second, seconds per gate.
  - Runs on the control node.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.control_node
options:
  plan:
    description: The plan.
    type: dict
    required: true
  choice:
    description: Result of image_selection.
    type: dict
  run:
    description: Id of the run.
    type: str
    required: true
  converged:
    description: Whether nothing was to be done.
    type: bool
    required: true
"""

EXAMPLES = r"""
- name: Summary
  dgxspark.serving.deployment_summary:
    plan: "{{ plan }}"
    choice: "{{ choice }}"
    run: "{{ run.run }}"
    converged: false
  run_once: true
"""

RETURN = r"""
summary: {description: The lines., returned: always, type: list, elements: str}
gates: {description: Seconds of each gate., returned: always, type: list, elements: dict}
waits: {description: Seconds in which the run waited for what is not its own work., returned: always, type: dict}
"""
