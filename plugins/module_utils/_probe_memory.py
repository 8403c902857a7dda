# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What registry_probe found in the candidates that the head has, from one run to the next.

PRIVATE to this collection. It is used again only while nothing has changed that the answer depends on: the images (ids and digests
in their registries), what was asked of them, and the code that looks into them. What a registry has is asked in each run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# Where the head keeps it (module remembered_choice).
PROBE_FILE = "/var/lib/dgxspark/state/probe.json"


def code_digest() -> str:
    """Of all code of the modules: cheaper to read than to say which parts an answer depends on."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def probe_key(names: Iterable[str], present: Mapping[str, Any], questions: Mapping[str, Any], code: str) -> str:
    """names: of the candidates on the hosts; present: what M(dgxspark.serving.host_survey) says of those that are there."""
    about = {"images": {name: present.get(name) for name in names}, "questions": questions, "code": code}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def recalled_probe(memory: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """C(images) and C(suitable) as registry_probe returned them, or None where something has changed."""
    if memory.get("key") != key or not {"images", "suitable"} <= memory.keys():
        return None
    return {"images": memory["images"], "suitable": memory["suitable"]}
