# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """How a module reaches the Docker Engine of its host."""

    DOCUMENTATION = r"""
options:
  docker_host:
    description: Address of the Docker Engine on the host.
    type: str
    default: unix:///var/run/docker.sock
requirements:
  - docker >= 5.0.0 (role P(dgxspark.serving.host_setup#role) brings it to C(/opt/dgxspark/python))
  - requests
"""
