# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """How a module reaches a registry of images."""

    DOCUMENTATION = r"""
options:
  registry_username:
    description: User name at the registry. The default is what C(docker login) has stored on the host.
    type: str
  registry_password:
    description: Password or token of O(registry_username).
    type: str
  registry_ca_path:
    description: File with the certificates of the authorities that the registry's certificate may come from.
    type: path
  registry_plain_http:
    description: Whether the registry is asked without TLS. Passwords are then sent in the clear.
    type: bool
    default: false
"""
