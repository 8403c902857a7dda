"""The first suitable candidate is taken, each other explained."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._candidates import (
    Wish,
    choose,
    local_name,
    pull_reference,
    requirements_of_engines,
)


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
        {"image": "other"},
    ]
    entries = [
        probed("absent", present=False),
        probed("mine", present=False),
        probed("pinned", digests=["pinned@sha256:2"]),
        probed("other", engine="other"),
    ]
    choice = choose(candidates, entries, ["pinned", "other"], "spark-1")
    assert choice.image == ""
    reasons = {entry["image"]: (entry["id"], entry["remedy"]) for entry in choice.rejected}
    assert reasons["absent"][0] == "IMAGE.UNPINNED"
    assert reasons["absent"][1].endswith("on spark-1: docker pull absent")
    assert reasons["mine"] == ("IMAGE.ABSENT", "")
    assert reasons["pinned"][0] == "IMAGE.DIGEST"
    assert reasons["other"][0] == "IMAGE.ENGINE"


def test_a_right_digest_is_taken() -> None:
    choice = choose([{"image": "p", "digest": "sha256:1"}], [probed("p", digests=["p@sha256:1"])], ["p"], "head")
    assert choice.image == "p"


D1, D2 = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def remote(reference: str, **values: Any) -> dict[str, Any]:
    return probed(reference, id="sha256:config", digests=[f"docker.io/x@{D2}"], size=7, **values)


def test_an_absent_image_with_a_digest_is_asked_for_in_its_registry_and_pulled_by_that() -> None:
    asked: list[str] = []

    def ask(reference: str) -> tuple[dict[str, Any], bool]:
        asked.append(reference)
        return remote(reference), True

    candidates = [{"image": "org/a:1", "digest": D2}, {"image": "org/b:1", "digest": D1}]
    entries = [probed("org/a:1", present=False), probed("org/b:1", present=False)]
    choice = choose(candidates, entries, [], "head", Wish(), ask)
    # Only until one is chosen.
    assert asked == [f"org/a@{D2}"]
    assert (choice.image, choice.image_id, choice.size) == ("org/a:1", "sha256:config", 7)
    assert choice.pull == {"source": f"org/a@{D2}", "digest": D2}
    assert choice.pinned == D2


def test_a_bare_tag_needs_leave_and_is_pinned_by_what_it_means_now() -> None:
    entries = [probed("org/a:1", present=False)]
    refused = choose([{"image": "org/a:1"}], entries, [], "head", Wish(), lambda reference: (remote(reference), True))
    assert refused.rejected[0]["id"] == "IMAGE.UNPINNED"
    wish = Wish(allow_unpinned=True)
    choice = choose([{"image": "org/a:1"}], entries, [], "head", wish, lambda reference: (remote(reference), True))
    assert choice.pull["source"] == f"org/a@{D2}"


def test_a_tag_that_was_chosen_once_stays_the_same_image() -> None:
    wish = Wish(allow_unpinned=True, remembered={"host:5000/a:1": {"digest": D1, "id": "x"}})
    assert pull_reference({"image": "host:5000/a:1"}, wish) == f"host:5000/a@{D1}"
    assert pull_reference({"image": "host:5000/a:2"}, wish) == "host:5000/a:2"


def test_an_image_that_the_engine_knows_by_its_id_only_is_recognised() -> None:
    candidates = [{"image": "p:1", "digest": D1}]
    entries = [probed("p:1", id="sha256:config", digests=[])]
    assert choose(candidates, entries, ["p:1"], "head").rejected[0]["id"] == "IMAGE.DIGEST"
    wish = Wish(remembered={"p:1": {"digest": D1, "id": "sha256:config"}})
    assert choose(candidates, entries, ["p:1"], "head", wish).image == "p:1"


def test_what_is_there_may_go_first() -> None:
    candidates = [{"image": "far:1", "digest": D1}, {"image": "near:1"}]
    entries = [probed("far:1", present=False), probed("near:1")]

    def ask(reference: str) -> tuple[dict[str, Any], bool]:
        return remote(reference), True

    assert choose(candidates, entries, ["near:1"], "head", Wish(), ask).image == "far:1"
    assert choose(candidates, entries, ["near:1"], "head", Wish(prefer_local=True), ask).image == "near:1"


def test_an_image_without_ray_is_rejected_under_ray_and_taken_with_mp_under_auto() -> None:
    entries = [probed("a", versions={"ray": None}), probed("b", versions={"ray": "2.60.0"})]
    candidates = [{"image": "a"}, {"image": "b"}]
    under_ray = choose(candidates, entries, ["a", "b"], "head", Wish("ray"))
    assert (under_ray.image, under_ray.backend) == ("b", "ray")
    assert under_ray.rejected[0]["id"] == "IMAGE.BACKEND"
    assert "spark_backend: auto" in under_ray.rejected[0]["remedy"]
    under_auto = choose(candidates, entries, ["a", "b"], "head", Wish("auto"))
    assert (under_auto.image, under_auto.backend) == ("a", "mp")
    assert choose([candidates[1]], entries, ["b"], "head", Wish("auto")).backend == "ray"
    only_mp = choose([{"image": "b", "backends": ["mp"]}], entries, ["b"], "head", Wish("auto"))
    assert only_mp.backend == "mp"


def test_a_candidate_by_digest_gets_a_name_that_docker_can_give() -> None:
    assert local_name(f"org/a@{D1}") == "org/a:111111111111"
    assert local_name(f"org/a:3@{D1}") == "org/a:3"
    assert local_name("host:5000/a") == "host:5000/a"


def test_each_refusal_of_a_registry_is_one_line() -> None:
    finding = {
        "id": "REMOTE.UNREACHABLE",
        "severity": "error",
        "message": "Registry x cannot be reached.",
        "remedy": "Check.",
    }
    entries = [probed("org/a:1", present=False)]

    def ask(_reference: str) -> tuple[dict[str, Any], bool]:
        return {"findings": [finding]}, False

    choice = choose([{"image": "org/a:1", "digest": D1}], entries, [], "head", Wish(), ask)
    assert choice.lines() == ["rejected org/a:1: Registry x cannot be reached", "  -> Check."]


def test_what_was_tried_in_this_run_is_not_taken_again_and_those_after_it_are_named() -> None:
    candidates = [
        {"image": "a"},
        {"image": "old"},
        {"image": "b"},
        {"image": "built", "local": True},
        {"image": "bare:1"},
        {"image": f"pinned@sha256:{'1' * 64}"},
    ]
    absent = [probed(name, present=False) for name in ("built", "bare:1", "pinned:111111111111")]
    entries = [probed("a"), probed("old", findings=ERRORS), probed("b"), *absent]
    first = choose(candidates, entries, ["a", "b"], "head")
    # Neither what is on no host and in no registry, nor what may not be pulled, nor what cannot serve.
    assert (first.image, first.others) == ("a", ["b", "pinned:111111111111"])
    assert choose(candidates, entries, ["a", "b"], "head", Wish(allow_unpinned=True)).others[-2] == "bare:1"
    second = choose(candidates, entries, ["a", "b"], "head", Wish(tried={"a": "no kernel"}))
    assert (second.image, second.others) == ("b", ["pinned:111111111111"])
    assert second.rejected[0]["reason"] == "did not serve in this run: no kernel"


def test_sglang_serves_without_ray_and_needs_no_version_of_vllm() -> None:
    requirements, engines = requirements_of_engines(
        {"require": {"vllm": ">=0.17", "ray": True}, "prefer": {"nccl": "2"}}
    )
    assert requirements == {"require": {"ray": True}, "prefer": {"nccl": "2"}} and engines == {"vllm": ">=0.17"}
    candidates = [{"image": "old"}, {"image": "s"}]
    entries = [probed("old", engine_version="0.14.1"), probed("s", engine="sglang", engine_version="0.5.11")]
    choice = choose(candidates, entries, ["old", "s"], "head", Wish("auto", engines=engines))
    assert (choice.image, choice.engine, choice.backend) == ("s", "sglang", "mp")
    assert choice.rejected[0]["reason"] == "vllm >=0.17 is needed, the image has vllm 0.14.1"
    assert choice.rejected[0]["id"] == "REQUIRE.VLLM"
    over_ray = choose(candidates, entries, ["old", "s"], "head", Wish(engines=engines))
    assert over_ray.image == ""
    assert "cannot serve with the backend ray, only with mp" in over_ray.rejected[1]["reason"]
