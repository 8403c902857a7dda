"""What the documentation says exists, and what exists is documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]
ROLES = sorted(path.name for path in (CHECKOUT / "roles").iterdir() if path.is_dir())


def specs(role: str) -> dict[str, Any]:
    loaded = yaml.safe_load((CHECKOUT / "roles" / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    entries: dict[str, Any] = loaded["argument_specs"]
    return entries


@pytest.mark.parametrize("role", ROLES)
def test_each_option_of_a_role_is_in_its_readme(role: str) -> None:
    readme = (CHECKOUT / "roles" / role / "README.md").read_text(encoding="utf-8")
    for entry in specs(role).values():
        for name in entry.get("options") or {}:
            assert f"`{name}`" in readme


@pytest.mark.parametrize("role", ROLES)
def test_each_default_of_a_role_is_specified(role: str) -> None:
    text = (CHECKOUT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8")
    options = {name for entry in specs(role).values() for name in entry.get("options") or {}}
    assert set(yaml.safe_load(text) or {}) <= options


def test_the_action_group_names_modules() -> None:
    runtime = yaml.safe_load((CHECKOUT / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    for name in runtime["action_groups"]["spark"]:
        assert (CHECKOUT / "plugins" / "modules" / f"{name}.py").exists()
