"""Gather the sources of the documentation's site in a folder: docs_site.py FOLDER. `make docs` builds it.

The Markdown pages stay where they are (their links are relative); the pages of modules, roles and filters are in FOLDER/collection.
"""

from __future__ import annotations

import shutil
import sys
import zlib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# The pages, and what they link to. Pages must lie in the folder itself: links are looked up from where a page really is.
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "roles")
LINKED = (
    *("COPYING", "Makefile", "deploy_qwen35.yml", "spark_inventory", "galaxy.yml"),
    *("inventories", "meta", "playbooks", "plugins", "tests"),
)
# Labels of Ansible's own documentation that the pages of the plugins refer to, with page and title. Sphinx would fetch the list.
ANSIBLE_LABELS = {
    "action_plugins": ("plugins/action.html", "Action plugins"),
    "ansible_configuration_settings": ("reference_appendices/config.html", "Ansible Configuration Settings"),
    "ansible_collections.ansible.builtin.module_defaults": (
        "user_guide/playbooks_module_defaults.html",
        "Module defaults",
    ),
    "common_return_values": ("reference_appendices/common_return_values.html", "Return Values"),
}
# The order in which somebody new reads them.
GUIDE = ("walk", "quickstart", "presets", "troubleshooting", "security")
INSIDE = ("architecture", "development", "lab")


def page(title: str, *toctrees: tuple[str, list[str]]) -> str:
    """A page of lists of pages, in Markdown."""
    lists = "\n".join(
        "\n".join([f"```{{toctree}}\n:caption: {caption}\n:maxdepth: 1\n", *entries, "```\n"])
        for caption, entries in toctrees
    )
    return f"# {title}\n\n{lists}"


def ansible_inventory() -> bytes:
    """The labels as an inventory of Sphinx, version 2: four lines, then compressed lines of name, kind, priority, page and title."""
    head = "# Sphinx inventory version 2\n# Project: ansible-core\n# Version: \n# The remainder of this file is compressed using zlib.\n"
    entries = [
        f"{label} std:label -1 {target}#{label.replace('_', '-')} {title}\n"
        for label, (target, title) in ANSIBLE_LABELS.items()
    ]
    return head.encode() + zlib.compress("".join(entries).encode())


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        origin = CHECKOUT / name
        if origin.is_dir():
            shutil.copytree(origin, folder / name)
        else:
            shutil.copy(origin, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(CHECKOUT / name)
    (folder / "ansible.inv").write_bytes(ansible_inventory())
    roles = sorted(path.parent.name for path in (CHECKOUT / "roles").glob("*/README.md"))
    text = page(
        "dgxspark.serving",
        ("Guide", ["Overview <README>", *(f"docs/{name}" for name in GUIDE)]),
        (
            "Reference",
            [
                "Modules, roles and filters <collection/index>",
                "docs/findings",
                *(f"roles/{role}/README" for role in roles),
            ],
        ),
        ("Inside", [*(f"docs/{name}" for name in INSIDE), "CONTRIBUTING", "CHANGELOG"]),
    )
    (folder / "index.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
