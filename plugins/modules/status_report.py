#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: status_report
short_description: Print the state of all hosts
version_added: 0.2.0
description:
  - Prints what M(dgxspark.serving.deployment_status) found on all hosts, one after the other. Fails when a host could not be looked at.
  - Runs on the control node.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.control_node
options:
  results:
    description: Name of the variable in which each host registered the result of M(dgxspark.serving.deployment_status).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Say what was found
  dgxspark.serving.status_report:
    results: deployment_status_result
  run_once: true
"""

RETURN = r"""
"""
