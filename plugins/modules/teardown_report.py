#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the control node.

from __future__ import annotations

DOCUMENTATION = r"""
module: teardown_report
short_description: Say what was stopped, kept and brought back on each host
version_added: 0.2.0
description:
  - Prints what M(dgxspark.serving.service_teardown) did on all hosts, side by side. Fails when it failed on one of them.
  - Runs on the control node.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
attributes:
  check_mode:
    support: full
    details:
      - Says what would be done.
  diff_mode:
    support: none
options:
  results:
    description: Name of the variable in which each host registered the result of M(dgxspark.serving.service_teardown).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Say what was stopped
  dgxspark.serving.teardown_report:
    results: service_teardown_result
  run_once: true
"""

RETURN = r"""
"""
