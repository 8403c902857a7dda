"""Stand-in of sglang.srt.server_args: accepts the arguments that the real file declares, by their names."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

REAL = Path("/opt/stand-in/sglang_server_args.py")
_DECLARED = re.compile(r'add_argument\(\s*((?:"--?[\w-]+",\s*)+)(.*?)\n        \)', re.DOTALL)


def prepare_server_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for names, rest in _DECLARED.findall(REAL.read_text()):
        kind = {"action": "store_true"} if '"store_true"' in rest else {}
        parser.add_argument(*re.findall(r'"(--?[\w-]+)"', names), **kind)
    return parser.parse_args(list(arguments))
