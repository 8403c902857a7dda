# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Platforms of images: os/architecture/variant.

PRIVATE to this collection.
"""

from __future__ import annotations

from dataclasses import dataclass

# Names that uname, Docker and others use for what images call by the name on the right (containerd, platforms/database.go).
_ARCHITECTURES = {
    "aarch64": "arm64",
    "x86_64": "amd64",
    "x86-64": "amd64",
    "armhf": "arm",
    "armel": "arm",
    "i386": "386",
}
# The variant that is meant when none is given.
_DEFAULT_VARIANTS = {"arm64": "v8", "arm": "v7"}


@dataclass(frozen=True)
class Platform:
    """variant is never left open for Arm: arm64 is arm64/v8."""

    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def of(cls, os: str, architecture: str, variant: str = "") -> Platform:
        known = _ARCHITECTURES.get(architecture.lower(), architecture.lower())
        return cls(os.lower(), known, variant.lower() or _DEFAULT_VARIANTS.get(known, ""))

    @classmethod
    def parse(cls, text: str) -> Platform:
        """C(linux/arm64), C(linux/arm64/v8), C(arm64) or C(aarch64); raises ValueError for anything else."""
        parts = text.strip().split("/")
        if not all(parts) or len(parts) > 3:
            raise ValueError(f"{text!r} is not a platform; write it like linux/arm64")
        if len(parts) == 1:
            parts.insert(0, "linux")
        return cls.of(*parts)

    def __str__(self) -> str:
        if self.variant in ("", _DEFAULT_VARIANTS.get(self.architecture)):
            return f"{self.os}/{self.architecture}"
        return f"{self.os}/{self.architecture}/{self.variant}"
