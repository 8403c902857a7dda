"""Make docs/findings.md of the tables in docs/findings: findings_page.py --write. tests/unit/test_findings_table.py compares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
TABLES = CHECKOUT / "docs" / "findings"
PAGE = CHECKOUT / "docs" / "findings.md"

# What the first part of an id says.
AREAS = {
    "ACCEPTANCE": "The model's answers (gate 10)",
    "ENGINE": "Why an engine did not come up (gate 9, `engine_log_check`)",
    "FABRIC": "Rails and the ways between the hosts (gate 2, `nccl_ib_check`)",
    "HOLDER": "Who holds memory and ports, and the two lists (gate 2)",
    "HOST": "A host and what it must have (gates 0 and 2, `host_survey`)",
    "IMAGE": "An image as a whole (gate 3, `registry_probe`)",
    "MEMORY": "Memory and GPUs (gates 2 and 6, `gpu_memory_check`)",
    "NCCL": "NCCL's environment and logs (`nccl_ib_check`)",
    "PLAN": "Preset, inventory and variables (gate 1)",
    "REGISTRY": "What the engine in an image knows (gate 3, `registry_probe`)",
    "REMOTE": "A registry of images (`registry_probe` with source remote)",
    "REQUIRE": "Versions in an image (gate 3, `registry_probe`)",
    "TEARDOWN": "The two lists and what runs on a host (gates 2 and 5, `host_survey`, `service_teardown`)",
    "TRIAL": "The serving image on the hosts, and the ranks among each other (gates 4b and 8, `rank_trial`)",
}
HEAD = """# Findings

Each check returns findings: `id`, `severity`, `subject`, `message`, `remedy`, `evidence`. Ids are stable; a message is made for the case
at hand and says more than this table. An error of gates 0 to 3 ends a deployment before anything is stopped. This page is made of
`docs/findings/*.yml` by `tests/ci/findings_page.py --write`.
"""


def load_tables() -> dict[str, dict[str, Any]]:
    """Id to severity, meaning and remedy."""
    entries: dict[str, dict[str, Any]] = {}
    for path in sorted(TABLES.glob("*.yml")):
        entries.update(yaml.safe_load(path.read_text(encoding="utf-8")))
    return entries


def page() -> str:
    entries = load_tables()
    text = HEAD
    for area, title in AREAS.items():
        text += f"\n## {title}\n\n| id | severity | meaning | remedy |\n|---|---|---|---|\n"
        for identity, entry in sorted(entries.items()):
            if identity.split(".")[0] == area:
                severity = " or ".join(entry["severity"])
                text += f"| `{identity}` | {severity} | {entry['meaning']} | {entry['remedy']} |\n"
    return text


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    PAGE.write_text(page(), encoding="utf-8")
