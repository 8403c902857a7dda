#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_snapshot
short_description: One look at the units, the journal, Ray's nodes and the API of a rank
version_added: 0.1.0
description:
  - What P(dgxspark.serving.await_ranks#module) calls on every host while it waits. It changes nothing but the deadline of the
    host's restore timer.
author:
  - dgxspark.serving contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
options:
  units:
    description: Systemd units of the rank.
    type: list
    elements: str
    required: true
  cursor:
    description: Cursor of the journal, from the last look.
    type: str
    default: ""
  since:
    description: Seconds since 1970 from which the journal is read when there is no O(cursor).
    type: float
    default: 0.0
  ray_container:
    description: Name of the container in which Ray is asked for its nodes. Empty means that it is not asked.
    type: str
    default: ""
  run:
    description: Id of the run that waits. The look is then a sign of life that keeps the host from restoring itself.
    type: str
    default: ""
  restore_seconds:
    description: For how long it is good. V(0) gives none.
    type: int
    default: 0
  active:
    description: Fails when one of O(units) is not active, and reads no journal.
    type: bool
    default: false
  health_url:
    description: Address that answers 200 when the API is up. Empty means that it is not asked.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: How is Ray?
  dgxspark.serving.rank_snapshot:
    units: [dgxspark-ray.service]
    ray_container: dgxspark-ray
  become: true
  register: snapshot
"""

RETURN = r"""
units: {description: State and restarts of each unit., returned: always, type: list, elements: dict}
lines: {description: New lines of the journal., returned: always, type: list, elements: str}
cursor: {description: Cursor for the next look., returned: always, type: str}
ray: {description: Version and nodes of Ray. Null while it does not answer or was not asked., returned: always, type: dict}
health: {description: HTTP status of the API. Zero while nothing answers., returned: always, type: int}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_health import health_status
from ansible_collections.dgxspark.serving.plugins.module_utils._rank_snapshot import journal, ray_nodes, unit_states
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_lease import renew
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import WorkloadError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "units": {"type": "list", "elements": "str", "required": True},
            "cursor": {"type": "str", "default": ""},
            "since": {"type": "float", "default": 0.0},
            "ray_container": {"type": "str", "default": ""},
            "run": {"type": "str", "default": ""},
            "restore_seconds": {"type": "int", "default": 0},
            "active": {"type": "bool", "default": False},
            "health_url": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    options = module.params
    try:
        if options["run"] and options["restore_seconds"]:
            renew(options["run"], options["restore_seconds"])
        states = unit_states(options["units"])
        down = [state.described for state in states if state.active != "active"]
        if options["active"] and down:
            module.fail_json(
                msg=f"This rank does not run: {', '.join(down)}. See journalctl --unit={down[0].split()[0]}."
            )
        lines: list[str] = []
        cursor = options["cursor"]
        if not options["active"]:
            lines, cursor = journal(options["units"], options["cursor"], options["since"])
    except WorkloadError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        units=[state.as_dict() for state in states],
        lines=lines,
        cursor=cursor,
        ray=ray_nodes(options["ray_container"]) if options["ray_container"] else None,
        health=health_status(options["health_url"]) if options["health_url"] else 0,
    )


if __name__ == "__main__":
    main()
