#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: gate
short_description: Print the heading of a gate and note when it began
version_added: 0.1.0
description:
  - Keeps the record of a run in C(~/.cache/dgxspark/runs) on the control node.
  - Runs on the control node.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.control_node
options:
  number:
    description: Number of the gate.
    type: str
    required: true
  title:
    description: What the gate is about.
    type: str
    required: true
  run:
    description: Id of the run. Without it a new run begins.
    type: str
"""

EXAMPLES = r"""
- name: Begin a run
  dgxspark.serving.gate:
    number: 0
    title: host setup
  run_once: true
  register: run
"""

RETURN = r"""
started: {description: When the run began in seconds since 1970., returned: always, type: float}
run: {description: Id of the run., returned: always, type: str, sample: 20261130T101500-3f6c}
folder: {description: Folder of the run on the control node., returned: always, type: str}
"""
