#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: library_archive
short_description: Pack Python libraries of the control node for the hosts
version_added: 0.1.0
description:
  - Takes the pure Python files of installed packages, so that they run on any architecture.
  - Runs on the control node.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.control_node
options:
  distributions:
    description: Names of installed packages.
    type: list
    elements: str
    required: true
  dependencies:
    description: Whether what these packages need is packed as well.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Pack
  dgxspark.serving.library_archive:
    distributions: [docker, requests]
  run_once: true
"""

RETURN = r"""
path: {description: Archive on the control node., returned: always, type: str}
digest: {description: Digest of its content., returned: always, type: str}
"""
