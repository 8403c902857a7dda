#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: findings_report
short_description: Collect the findings of all hosts and stop with one report
version_added: 0.1.0
description:
  - Reads registered results of all hosts. A host that is unreachable, left out by C(--limit) or refuses sudo is a finding too.
  - Fails when there is an error, and names everything that was found.
  - Runs on the control node.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.control_node
options:
  results:
    description: Names of the registered variables.
    type: list
    elements: str
    required: true
  hosts:
    description: Hosts to ask. By default group C(spark).
    type: list
    elements: str
  gate:
    description: Name of the gate in the message.
    type: str
  holders:
    description: Whether holders of memory and ports must be on one of the lists.
    type: bool
    default: false
  stop:
    description: The user's stop list.
    type: dict
  keep:
    description: The user's keep-list.
    type: dict
  unlisted_holders:
    description: What to do with a holder that is on neither list.
    type: str
    choices: [fail, stop]
    default: fail
  plan:
    description:
      - The plan of the deployment. With it the results of the hosts are compared with each other as well - clocks, architecture,
        GPUs and drivers, both ends of the fabric, connections between the hosts, and room for the head's images.
    type: dict
  trial_gib:
    description: GiB that a trial of the image needs on every host beside what runs there.
    type: float
    default: 6.0
  before_teardown:
    description: Whether nothing has been stopped yet, which the report of errors then says.
    type: bool
    default: true
  become_optional:
    description: Whether a host may be looked at without root's rights, when no password was given.
    type: bool
    default: false
  utilization:
    description: Share of the memory that the engine will want.
    type: float
"""

EXAMPLES = r"""
- name: Report
  dgxspark.serving.findings_report:
    results: [survey]
  run_once: true
"""

RETURN = r"""
findings: {description: All findings., returned: always, type: list, elements: dict}
stop_unlisted: {description: Host to the unlisted units and containers that may be stopped., returned: always, type: dict}
trial_has_room: {description: Whether a trial can run beside what runs now on every host., returned: always, type: bool}
"""
