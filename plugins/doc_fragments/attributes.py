# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Attributes of modules: what they do in check mode, and the action group."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and return what it would do without changing the host.
  diff_mode:
    description: Returns what has changed or would change as a difference when run with C(--diff).
"""

    # For modules that only look.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - This module changes nothing.
  diff_mode:
    support: N/A
    details:
      - This module changes nothing.
"""

    # For modules whose work is done on the control node.
    CONTROL_NODE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - Changes nothing on the hosts.
  diff_mode:
    support: none
"""

    ACTIONGROUP_SPARK = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/dgxspark.serving.spark) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - dgxspark.serving.spark
"""
