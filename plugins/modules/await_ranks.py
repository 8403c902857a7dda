#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: await_ranks
short_description: Wait until Ray is complete or the engine answers
version_added: 0.1.0
description:
  - Watches every rank at the same time, shows phases, and ends when a rank fails, when nothing moves for too long, or at the hard limit.
  - Needs a fork for every host.
  - An action plugin on the control node that looks at the host.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Says that it is not evaluated in check mode.
  diff_mode:
    support: none
options:
  what:
    description: What is awaited.
    type: str
    choices: [ray, engine]
    required: true
  run:
    description: Id of the run.
    type: str
    required: true
  host:
    description: This host's entry of the plan.
    type: dict
    required: true
  hosts:
    description: All hosts of the plan.
    type: list
    elements: dict
    required: true
  units:
    description: Units of this rank.
    type: list
    elements: str
    required: true
  ray_container:
    description: Container in which Ray is asked for its nodes.
    type: str
  health_url:
    description: Address that answers 200 when the API is up.
    type: str
  attempt:
    description: Number of the attempt, where something is tried more than once in a run.
    type: int
    default: 0
  restore_seconds:
    description: Each look keeps the host from restoring itself for so long. V(0) gives no sign.
    type: int
    default: 0
  next_seconds:
    description: How much longer the last look is good, for the gate that follows.
    type: int
    default: 0
  progress_seconds:
    description: Seconds without a sign of progress.
    type: float
    required: true
  total_seconds:
    description: Seconds in all.
    type: float
    required: true
"""

EXAMPLES = r"""
- name: Wait for Ray
  dgxspark.serving.await_ranks:
    what: ray
    run: "{{ run.run }}"
    host: "{{ plan.host }}"
    hosts: "{{ plan.hosts }}"
    units: [dgxspark-ray.service]
    ray_container: dgxspark-ray
    progress_seconds: 120
    total_seconds: 600
  become: true
"""

RETURN = r"""
started: {description: When the wait began in seconds since 1970., returned: always, type: float}
stalled_seconds: {description: For how long nothing had moved when the wait ended for that reason. Else 0., returned: always, type: float}
phases: {description: Phases and when they began., returned: always, type: list, elements: dict}
seconds: {description: How long the wait was., returned: always, type: float}
state: {description: ready or failed., returned: always, type: str}
explanation: {description: Why., returned: always, type: str}
"""
