"""The first suitable candidate is taken, each other explained."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._candidates import choose


def probed(image: str, **values: Any) -> dict[str, Any]:
    return {
        "image": image,
        "id": f"sha256:{image}",
        "present": True,
        "engine": "vllm",
        "engine_version": "0.32.0",
        "findings": [],
        **values,
    }


ERRORS = [
    {
        "id": "REGISTRY.ARCHITECTURE_UNKNOWN",
        "severity": "error",
        "message": "vLLM 0.14.1 does not know X.",
        "remedy": "Take a newer one.",
    },
    {"id": "REQUIRE.NCCL", "severity": "warning", "message": "nccl", "remedy": ""},
]


def test_order_of_the_preset_decides() -> None:
    candidates = [{"image": "a"}, {"image": "b", "reason": "second"}, {"image": "c"}]
    choice = choose(candidates, [probed("a", findings=ERRORS), probed("b"), probed("c")], ["b", "c"], "head")
    assert (choice.image, choice.image_id, choice.reason) == ("b", "sha256:b", "second")
    assert [entry["image"] for entry in choice.rejected] == ["a"]
    assert choice.rejected[0]["reason"] == "vLLM 0.14.1 does not know X"
    assert choice.rejected[0]["remedy"] == "Take a newer one."


def test_absent_wrong_digest_and_other_engine_are_rejected() -> None:
    candidates = [
        {"image": "absent"},
        {"image": "mine", "local": True},
        {"image": "pinned", "digest": "sha256:1"},
        {"image": "sglang"},
    ]
    entries = [
        probed("absent", present=False),
        probed("mine", present=False),
        probed("pinned", digests=["pinned@sha256:2"]),
        probed("sglang", engine="sglang"),
    ]
    choice = choose(candidates, entries, ["pinned", "sglang"], "spark-1")
    assert choice.image == ""
    reasons = {entry["image"]: (entry["id"], entry["remedy"]) for entry in choice.rejected}
    assert reasons["absent"] == ("IMAGE.ABSENT", "On spark-1: docker pull absent")
    assert reasons["mine"] == ("IMAGE.ABSENT", "")
    assert reasons["pinned"][0] == "IMAGE.DIGEST"
    assert reasons["sglang"][0] == "IMAGE.ENGINE"


def test_a_right_digest_is_taken() -> None:
    choice = choose([{"image": "p", "digest": "sha256:1"}], [probed("p", digests=["p@sha256:1"])], ["p"], "head")
    assert choice.image == "p"
