"""Take Qwen3_5MoeForConditionalGeneration out of the registry of the vLLM that is installed here."""

from __future__ import annotations

import importlib.util
import py_compile
import re
from pathlib import Path

ARCHITECTURE = "Qwen3_5MoeForConditionalGeneration"
ENTRY = re.compile(rf'^\s*"{ARCHITECTURE}":\s*\(.*?\),\n', re.DOTALL | re.MULTILINE)


def main() -> None:
    package = importlib.util.find_spec("vllm")
    if package is None or package.origin is None:
        raise SystemExit("vllm is not installed")
    registry = Path(package.origin).parent / "model_executor" / "models" / "registry.py"
    text, removed = ENTRY.subn("", registry.read_text())
    if not removed:
        raise SystemExit(f"{ARCHITECTURE} is not in {registry}")
    registry.write_text(text)
    # The compiled file beside it is used without a look at its source.
    py_compile.compile(str(registry), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True)


if __name__ == "__main__":
    main()
