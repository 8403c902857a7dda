# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The option that every check of the collection has."""

    DOCUMENTATION = r"""
options:
  fail_on:
    description:
      - Severities of findings that make the module fail. All that was measured is returned as well.
      - By default a failed check is a result and not a failure of the module.
    type: list
    elements: str
    choices: [error, warning, info]
    default: []
"""
