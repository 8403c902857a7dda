"""Make the serving image one of SGLang: the real package of SGLang without what needs a GPU, in front of the lab's vLLM.

Runs in a container of the serving image, with this folder and a wheel of SGLang at /build. Its model registry, its parsers and the names
of its arguments are the real ones. What is imported is a stand-in: the real modules do not import without a GPU.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

SITE = Path("/usr/local/lib/python3.11/dist-packages")
BUILD = Path("/build")
# Where no Python looks: an image of SGLang has no vLLM.
HIDDEN = Path("/opt/stand-in")
STAND_INS = {
    "server_args.py": "srt/server_args.py",
    "http_server.py": "srt/entrypoints/http_server.py",
    "launch_server.py": "launch_server.py",
    "utils.py": "srt/utils/__init__.py",
}


def main() -> None:
    HIDDEN.mkdir()
    for path in [SITE / "vllm", *SITE.glob("vllm-*.dist-info"), *SITE.glob("lab_ray_platform*")]:
        shutil.move(path, HIDDEN / path.name)
    shutil.move("/usr/local/bin/vllm", HIDDEN / "vllm-command")
    with zipfile.ZipFile(next(BUILD.glob("wheels/sglang-*.whl"))) as wheel:
        wheel.extractall(SITE)
    package = SITE / "sglang"
    shutil.copy(package / "srt" / "server_args.py", HIDDEN / "sglang_server_args.py")
    for name, place in STAND_INS.items():
        shutil.copy(BUILD / name, package / place)
    (package / "__init__.py").write_text("")


if __name__ == "__main__":
    main()
