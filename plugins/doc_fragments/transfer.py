# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """How hosts find the head from which they fetch."""

    DOCUMENTATION = r"""
options:
  role:
    description: Whether this host offers or fetches.
    type: str
    choices: [head, worker]
    required: true
  name:
    description: Name of this host, under which it reports to the head.
    type: str
    required: true
  address:
    description: Address of the head on the fabric.
    type: str
    required: true
  token:
    description: Secret of the run that hosts show each other.
    type: str
    required: true
  progress_path:
    description:
      - File in which the module says how far it is. A module whose file nobody asks for (M(dgxspark.serving.staging_progress))
        for five minutes ends itself.
    type: path
"""
