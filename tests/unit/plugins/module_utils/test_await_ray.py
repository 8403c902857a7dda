"""The engine starts when all nodes are there, in whatever order the hosts boot."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._await_ray import expected_nodes, wait


def node(address: str, alive: bool = True, gpus: int = 1) -> dict[str, Any]:
    return {"address": address, "alive": alive, "gpus": gpus}


def test_it_waits_for_every_node_and_says_each_change_once() -> None:
    answers = iter(
        [
            None,
            None,
            {"version": "2.60", "nodes": [node("10.0.0.1")]},
            # The worker was restarted: Ray still lists the old one.
            {"version": "2.60", "nodes": [node("10.0.0.1"), node("10.0.0.2", alive=False)]},
            {"version": "2.60", "nodes": [node("10.0.0.1"), node("10.0.0.2"), node("10.0.0.2")]},
            {"version": "2.60", "nodes": [node("10.0.0.1"), node("10.0.0.2")]},
        ]
    )
    said: list[str] = []
    slept: list[float] = []
    wait(expected_nodes(["10.0.0.1=1", "10.0.0.2=1"]), lambda: next(answers), slept.append, said.append)
    assert len(slept) == 5
    assert [line.split(",")[0] for line in said] == [
        "waiting: Ray on the head does not answer yet",
        "waiting: 1 of 2 Ray nodes have joined",
        "waiting: two Ray runtimes run at 10.0.0.2: stop the one that is not ours",
        "2 Ray nodes",
    ]
