# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which of a preset's candidate images is taken, and why not the others.

PRIVATE to this collection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING

# Engines that role vllm_serve can run.
SERVED_ENGINES = ("vllm",)


@dataclass
class Choice:
    """image: reference of the chosen candidate, empty when none fits; rejected: image and the reason, a line each."""

    image: str = ""
    image_id: str = ""
    engine: str = ""
    engine_version: str = ""
    reason: str = ""
    versions: dict[str, Any] = field(default_factory=dict)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def lines(self) -> list[str]:
        """For a terminal: the chosen image, then each rejection with its reason."""
        lines = []
        if self.image:
            lines.append(f"chosen {self.image}: {self.engine} {self.engine_version} ({self.reason})")
        for entry in self.rejected:
            lines.append(f"rejected {entry['image']}: {entry['reason']}")
            if entry["remedy"]:
                lines.append(f"  -> {entry['remedy']}")
        lines += [f"warning: {entry['message']} [{entry['id']}]" for entry in self.warnings]
        return lines


def _rejection(image: str, reason: str, remedy: str = "", finding_id: str = "") -> dict[str, Any]:
    return {"image": image, "reason": reason, "remedy": remedy, "id": finding_id}


def choose(
    candidates: Sequence[Mapping[str, Any]],
    probed: Sequence[Mapping[str, Any]],
    suitable: Sequence[str],
    head: str,
) -> Choice:
    """The first candidate that registry_probe found suitable, by the order of the preset.

    candidates: the preset's; probed and suitable: results of registry_probe for the same images on host C(head).
    """
    choice = Choice()
    by_name = {str(entry["image"]): entry for entry in probed}
    for candidate in candidates:
        name = str(candidate["image"])
        entry = by_name[name]
        if not entry.get("present"):
            choice.rejected.append(
                _rejection(
                    name,
                    f"is not on {head}",
                    f"On {head}: docker pull {name}" if not candidate.get("local") else "",
                    "IMAGE.ABSENT",
                )
            )
        elif candidate.get("digest") and not _has_digest(entry, str(candidate["digest"])):
            choice.rejected.append(
                _rejection(
                    name,
                    f"is on {head} with another digest than the preset's {candidate['digest']}",
                    f"On {head}: docker pull {name.split(':', 1)[0]}@{candidate['digest']}",
                    "IMAGE.DIGEST",
                )
            )
        elif name not in suitable:
            errors = [finding for finding in entry["findings"] if finding["severity"] == ERROR]
            choice.rejected.append(
                _rejection(
                    name,
                    "; ".join(finding["message"].rstrip(".") for finding in errors)
                    or "registry_probe does not find it suitable",
                    next((finding["remedy"] for finding in errors if finding["remedy"]), ""),
                    errors[0]["id"] if errors else "",
                )
            )
        elif str(entry.get("engine")) not in SERVED_ENGINES:
            choice.rejected.append(
                _rejection(
                    name,
                    f"has engine {entry.get('engine')}; this version serves with {', '.join(SERVED_ENGINES)}",
                    "",
                    "IMAGE.ENGINE",
                )
            )
        elif not choice.image:
            choice.image, choice.image_id = name, str(entry["id"])
            choice.engine, choice.engine_version = str(entry["engine"]), str(entry["engine_version"])
            choice.reason = str(candidate.get("reason") or "first suitable candidate")
            choice.versions = dict(entry.get("versions") or {})
            choice.warnings = [finding for finding in entry["findings"] if finding["severity"] == WARNING]
    return choice


def _has_digest(entry: Mapping[str, Any], digest: str) -> bool:
    return any(
        str(known).endswith(digest)
        for known in (entry.get("digests") or (), entry.get("id") or "")
        for known in _as_list(known)
    )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
