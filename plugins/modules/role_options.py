#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: role_options
short_description: Check the options of several roles before any of them is run
version_added: 0.2.0
description:
  - Compares every option of the roles, as it is set for the host, with the roles' argument specs, and names all that cannot be used at
    once. Otherwise a wrong option of a late role would be found when services have been stopped already.
  - An option whose value depends on what an earlier role finds out is left out.
  - Runs on the control node.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.control_node
options:
  roles:
    description: Names of roles of this collection.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Check what the user has set
  dgxspark.serving.role_options:
    roles: [ray_cluster, vllm_serve]
"""

RETURN = r"""
"""
