"""The end of a run says what was done, and does not claim what was not."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._summary import summary

PLAN: dict[str, Any] = {
    "description": "A model",
    "preset": "p",
    "backend": "ray",
    "hosts": [{"name": "a", "role": "head", "management_address": "", "control_address": "192.168.200.12"}],
    "api": {"port": 8000},
    "model": {"served_name": "qwen35"},
    "expected": {"tokens_per_second": 27},
}
ANSWER = {
    "prompt": "What is 2+2?",
    "content": "4",
    "reasoning": "two and two",
    "tool_calls": [{"name": "f", "arguments": "{}"}],
}


def text(**values: Any) -> str:
    return summary(
        {
            "plan": PLAN,
            "choice": {"image": "i", "engine": "vllm", "engine_version": "0.32.0", "reason": "r", "rejected": []},
            "hosts": [
                {
                    "name": "a",
                    "teardown": {"stopped": ["unit x"], "kept": ["container e"]},
                    "memory_before": None,
                    "memory_after": None,
                }
            ],
            "ray": {"explanation": "1 Ray nodes"},
            "acceptance": {"answers": [ANSWER], "tokens_per_second": 30.0},
            "gates": [("0", "host setup", 1.5)],
            "converged": False,
            "check_mode": False,
            **values,
        }
    )


def test_without_ray_nothing_is_said_of_it() -> None:
    found = text(plan={**PLAN, "backend": "mp"}, ray=None)
    assert "1 host(s) without Ray (mp)" in found and "when the engine started" in found
    assert "without Ray" not in text() and "when Ray started" in text()


def test_a_whole_run() -> None:
    found = text()
    for line in (
        "a: unit x",
        "a: container e",
        "What is 2+2?",
        "two and two",
        "f({})",
        "30.0 tokens/s on one stream, expected 27",
    ):
        assert line in found
    assert "http://192.168.200.12:8000/v1" in found
    assert "gate 0 host setup: 1.5" in found
    assert "waited for: Ray 14.2, engine 40.0" in text(waits={"Ray": 14.2, "engine": 40.0})
    assert "waited for" not in found
    # One host has no way to another.
    assert "transport" not in found


def test_two_hosts_say_whether_the_transport_is_proven() -> None:
    two = {**PLAN, "hosts": [*PLAN["hosts"], {**PLAN["hosts"][0], "name": "b", "role": "worker"}]}
    assert "not proven: the trial did not run" in text(plan=two, trial=[{}, {}])
    ib = {"transport": {"verdict": "ib", "devices": ["rocep1s0f0"]}, "bus_gbps": 111.0}
    assert "NCCL over IB, proven: 111.0 Gbit/s with rocep1s0f0" in text(plan=two, trial=[ib, ib])


def test_check_mode_and_converged_claim_nothing() -> None:
    assert "not evaluated in check mode" in text(check_mode=True, acceptance=None)
    converged = text(converged=True, hosts=[{"name": "a", "teardown": None}])
    assert "nothing: the hosts are as planned" in converged
    assert "stopped" not in converged


def test_without_a_choice_the_image_is_not_evaluated() -> None:
    assert "not evaluated: the hosts lack the Python libraries" in text(choice={}, check_mode=True, acceptance=None)


def test_a_long_row_breaks_between_words() -> None:
    gates = [(str(number), "a gate with a long title", 1.5) for number in range(12)]
    lines = text(gates=gates).splitlines()
    assert max(len(line) for line in lines) <= 100
    assert " ".join(" ".join(lines).split()).count("a gate with a long title: 1.5") == 12
