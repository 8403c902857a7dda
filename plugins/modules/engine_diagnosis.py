#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_diagnosis
short_description: Say why the engine did not come up, and what to change
version_added: 0.2.0
description:
  - Reads the logs of all ranks together, as M(dgxspark.serving.engine_log_check) does, and chooses the next rung of the ladder.
  - Runs on the control node.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.control_node
options:
  logs:
    description: Name of the variable in which each host registered its log, with the key C(stdout).
    type: str
    required: true
  plan:
    description: The plan, as M(dgxspark.serving.deployment_plan) returns it.
    type: dict
    required: true
  image_id:
    description: Id of the serving image. What is learned holds for it only.
    type: str
    default: ""
  known:
    description: What the head remembers of earlier deployments.
    type: dict
    default: {}
  changes:
    description: Values of the engine that this attempt had changed already.
    type: dict
    default: {}
  rungs:
    description: Rungs that were taken before.
    type: list
    elements: dict
    default: []
  climb:
    description: Whether a rung may be chosen.
    type: bool
    default: true
  waits:
    description:
      - Name of the variable in which each host registered the result of M(dgxspark.serving.await_ranks). It says whether the wait ended
        because nothing moved.
    type: str
    default: ""
seealso:
  - module: dgxspark.serving.engine_log_check
"""

EXAMPLES = r"""
- name: Why?
  dgxspark.serving.engine_diagnosis:
    logs: rank_log
    plan: "{{ plan_result }}"
  register: diagnosis
  run_once: true
"""

RETURN = r"""
cause: {description: As of M(dgxspark.serving.engine_log_check)., returned: always, type: dict}
rung: {description: The next rung. Null where none helps., returned: always, type: dict}
next_attempt:
  description: What the next attempt is made with. Null without a rung.
  returned: always
  type: dict
  contains:
    rungs: {description: "Rungs that were taken, with this one.", type: list, elements: dict}
    changes: {description: Values that differ from the plan., type: dict}
    learned: {description: What to remember if it serves., type: dict}
next_candidate: {description: Whether another image or engine may do better., returned: always, type: bool}
diagnosis: {description: The cause with its remedy and evidence for a terminal. Empty where none was found., returned: always, type: str}
"""
