# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How a module that moves image or weights runs: in the background, seen by staging_progress.

PRIVATE to this collection.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress


def run_transfer(
    module: AnsibleModule,
    work: Callable[[AnsibleModule, Progress], dict[str, Any]],
    errors: tuple[type[Exception], ...],
) -> None:
    """Ends the module with what the work returns, and its C(seconds), or with one of the errors as its message."""
    began = time.monotonic()
    progress = Progress(module.params["progress_path"] or "")
    end_progress = progress.begin()
    try:
        result = work(module, progress)
    except errors as error:
        module.fail_json(msg=str(error))
    finally:
        end_progress()
    module.exit_json(seconds=round(time.monotonic() - began, 2), **result)
