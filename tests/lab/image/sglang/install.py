"""Make the serving image one of SGLang: the real package of SGLang without what needs a GPU, in front of the lab's vLLM.

Runs in a container of the serving image, with this folder and a wheel of SGLang at /build. Its model registry, its parsers and its
arguments are the real ones. Its server is a stand-in (http_server.py): the real one cannot be imported without a GPU.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

SITE = Path("/usr/local/lib/python3.11/dist-packages")
BUILD = Path("/build")
# Where no Python looks: an image of SGLang has no vLLM.
HIDDEN = Path("/opt/stand-in")
# The real function also looks for GPUs; the arguments themselves are parsed by the real parser.
PREPARE = """

def prepare_server_args(argv):
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser.parse_args(argv)
"""


def main() -> None:
    HIDDEN.mkdir()
    for path in [SITE / "vllm", *SITE.glob("vllm-*.dist-info"), *SITE.glob("lab_ray_platform*")]:
        shutil.move(path, HIDDEN / path.name)
    shutil.move("/usr/local/bin/vllm", HIDDEN / "vllm-command")
    with zipfile.ZipFile(next(BUILD.glob("wheels/sglang-*.whl"))) as wheel:
        wheel.extractall(SITE)
    server_args = SITE / "sglang" / "srt" / "server_args.py"
    server_args.write_text(server_args.read_text() + PREPARE)
    shutil.copy(BUILD / "http_server.py", SITE / "sglang" / "srt" / "entrypoints" / "http_server.py")
    shutil.copy(BUILD / "launch_server.py", SITE / "sglang" / "launch_server.py")


if __name__ == "__main__":
    main()
