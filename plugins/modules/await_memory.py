#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node, with module gpu_memory_check on the host.

from __future__ import annotations

DOCUMENTATION = r"""
module: await_memory
short_description: Wait until released memory is back
version_added: 0.2.0
description:
  - Looks with M(dgxspark.serving.gpu_memory_check) until an engine would start, and says what is available and who holds the rest.
  - Drops the page cache once, and only where it is in the way.
  - When the memory does not come back the findings say why; the task itself does not fail.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: partial
    details:
      - Nothing is evaluated in check mode.
  diff_mode:
    support: none
options:
  utilization:
    description: Share of the memory that the engine will ask for.
    type: float
    required: true
  settle_seconds:
    description: How long to wait.
    type: int
    default: 0
seealso:
  - module: dgxspark.serving.gpu_memory_check
"""

EXAMPLES = r"""
- name: Wait until the memory is back
  dgxspark.serving.await_memory:
    utilization: 0.8
    settle_seconds: 90
  become: true
  register: memory
"""

RETURN = r"""
waited_seconds: {description: How long it took., returned: always, type: float}
findings: {description: As of M(dgxspark.serving.gpu_memory_check)., returned: always, type: list, elements: dict}
"""
