"""What is stopped, what is kept, and what the host does about services that come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _teardown as teardown_util
from ansible_collections.dgxspark.serving.plugins.module_utils._engine_processes import (
    end_processes,
    orphans,
    processes,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import ProcessOwner
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import Selection
from ansible_collections.dgxspark.serving.plugins.module_utils._teardown import Teardown, plan_teardown, stop_all
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_host import FakeHost, container, no_sleep, unit

STOP = {"units": ["vllm-cluster", "vllm-proxy"], "containers": ["reranker", "ghost"]}
KEEP = {"containers": ["embeddings"]}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHost:
    monkeypatch.setattr(teardown_util.suspend, "__defaults__", (str(tmp_path / "system"),))
    return FakeHost()


def plan(
    host: FakeHost,
    stop: dict[str, list[str]] | None = None,
    keep: dict[str, list[str]] | None = None,
    unlisted: tuple[str, ...] = (),
) -> Teardown:
    # A process tree of this machine must not play a part: an empty /proc.
    empty = Path("/var/empty")
    empty.mkdir(exist_ok=True)
    return plan_teardown(
        Selection.parse(STOP if stop is None else stop),
        Selection.parse(KEEP if keep is None else keep),
        unlisted,
        run=host,
        proc_root=str(empty),
    )


def carry_out(host: FakeHost, teardown: Teardown) -> list[str]:
    return stop_all(teardown, host, no_sleep)


def test_the_plan_names_what_is_stopped_kept_and_missing(host: FakeHost) -> None:
    teardown = plan(host)
    assert teardown.names == ["unit vllm-cluster.service", "unit vllm-proxy.service", "container reranker"]
    assert teardown.kept == ("container embeddings",)
    assert teardown.missing == ("ghost",)
    assert teardown.findings == ()
    assert host.commands == []


def test_a_teardown_suspends_policies_and_units_and_touches_nothing_kept(host: FakeHost) -> None:
    assert carry_out(host, plan(host)) == []
    assert host.states == {"reranker": "exited", "embeddings": "running", "old": "exited"}
    assert host.containers["reranker"]["policy"] == "no"
    assert host.units["vllm-cluster.service"]["enabled"] == "disabled"
    assert not any("embeddings" in command for command in host.commands)
    # docker run ended with 143, which is no failure here.
    assert host.units["vllm-cluster.service"]["active"] == "inactive"


def test_a_second_teardown_finds_nothing(host: FakeHost) -> None:
    carry_out(host, plan(host))
    assert plan(host).empty


@pytest.mark.parametrize("policy", ["no", "always", "unless-stopped", "on-failure", "on-failure:5"])
def test_every_restart_policy_is_suspended(host: FakeHost, policy: str) -> None:
    host.containers["reranker"]["policy"] = policy
    carry_out(host, plan(host))
    assert host.containers["reranker"] == container("exited", "no")


def test_a_stopped_container_that_a_boot_would_start_is_suspended(host: FakeHost) -> None:
    # Case 080: `always` comes back even after a manual stop when dockerd restarts.
    host.containers["reranker"] = container("exited", "always")
    assert "container reranker" in plan(host).names
    carry_out(host, plan(host))
    assert host.containers["reranker"]["policy"] == "no"


def test_a_compose_project_is_named_by_its_label(host: FakeHost) -> None:
    # Case 080.
    labels = {"com.docker.compose.project": "deepseek-v4-flash", "com.docker.compose.service": "vllm-dspark"}
    host.containers["deepseek-v4-flash-vllm-dspark-1"] = container(policy="unless-stopped", labels=labels)
    teardown = plan(host, {"labels": ["com.docker.compose.project=deepseek-v4-flash"]})
    assert teardown.names == ["container deepseek-v4-flash-vllm-dspark-1"]


def test_a_container_that_outlives_its_wrapper_is_stopped_too(host: FakeHost) -> None:
    host.wrapper_leaves_container = True
    assert carry_out(host, plan(host)) == []
    assert "glm" not in host.containers


@pytest.mark.parametrize("active", ["active", "inactive"])
def test_the_container_of_a_monitor_script_is_stopped_and_the_other_service_is_not(
    host: FakeHost, tmp_path: Path, active: str
) -> None:
    # Case 081: the unit runs a script; its container lives beside the unit, also when the unit is down already.
    script = tmp_path / "monitor.sh"
    script.write_text(
        "#!/bin/sh\nNAME=llm-head\ndocker run -d --restart always --name \\\n  $NAME vllm\nwhile sleep 5; do docker inspect $NAME; done\n",
        encoding="utf-8",
    )
    host.units["llm-cluster.service"] = unit(command=f"{script} --watch", active=active, enabled="disabled")
    host.containers |= {"llm-head": container(policy="always"), "embed-8022": container()}
    teardown = plan(host, {"units": ["llm-cluster"]}, {})
    assert "container llm-head" in teardown.names
    assert not any("embed-8022" in name for name in teardown.names)
    assert carry_out(host, teardown) == []
    assert host.states["llm-head"] == "exited"
    assert host.states["embed-8022"] == "running"


def test_a_named_container_takes_the_unit_that_runs_it_along(host: FakeHost) -> None:
    teardown = plan(host, {"containers": ["glm"]})
    assert teardown.names == ["unit vllm-cluster.service"]


def test_a_unit_that_brings_up_a_compose_project_owns_its_containers(host: FakeHost) -> None:
    host.units["stack.service"] = unit(
        command="/usr/bin/docker compose -f /srv/stack/compose.yml up", enabled="disabled"
    )
    host.containers["stack-api-1"] = container(labels={"com.docker.compose.project": "stack"})
    assert plan(host, {"containers": ["stack-api-1"]}).names == ["unit stack.service"]


def test_what_starts_a_unit_is_stopped_with_it(host: FakeHost) -> None:
    host.units["vllm-proxy.socket"] = unit()
    host.units["vllm-proxy.service"]["triggered_by"] = "vllm-proxy.socket"
    assert plan(host).names[0] == "unit vllm-proxy.socket"


def test_a_unit_that_comes_back_is_made_unable_to_start(host: FakeHost, tmp_path: Path) -> None:
    # Two units that restart each other: the first stop is answered by the other unit.
    host.wakes = {"vllm-proxy.service": 1}
    assert carry_out(host, plan(host)) == []
    drop_in = tmp_path / "system" / "vllm-proxy.service.d" / "50-dgxspark-suspended.conf"
    assert "ConditionPathExists=!/" in drop_in.read_text(encoding="utf-8")
    assert host.units["vllm-proxy.service"]["active"] == "inactive"


def test_units_that_wake_each_other_in_turn_are_all_stopped(host: FakeHost) -> None:
    # Each look sees another one running.
    host.wakes = {"vllm-cluster.service": 1, "vllm-proxy.service": 2}
    assert carry_out(host, plan(host)) == []
    assert {host.units[name]["active"] for name in ("vllm-cluster.service", "vllm-proxy.service")} == {"inactive"}


def test_what_comes_back_again_and_again_is_named_with_its_suspect(host: FakeHost) -> None:
    host.wakes = {"reranker": 9}
    host.units["watch.service"] = unit(command="/opt/watch reranker")
    assert carry_out(host, plan(host)) == ["container reranker (unit watch.service mentions it)"]


@pytest.mark.parametrize(
    ("stop", "keep", "words"),
    [
        (
            {"containers": ["reranker"]},
            {"containers": ["reranker"]},
            "container reranker is on spark_stop and on spark_keep",
        ),
        (
            {"units": ["vllm-proxy"]},
            {"units": ["vllm-proxy.service"]},
            "unit vllm-proxy.service is on spark_stop and on spark_keep",
        ),
        (
            {"containers": ["reranker"]},
            {"images": ["img"]},
            "is named by spark_stop, and by its image, label or unit on spark_keep",
        ),
        (
            {"units": ["vllm-cluster"]},
            {"containers": ["glm"]},
            "container glm is on spark_keep, and unit vllm-cluster.service",
        ),
        (
            {"containers": ["glm"]},
            {"units": ["vllm-cluster"]},
            "container glm is named by spark_stop, and by its image, label or unit on spark_keep",
        ),
        ({"units": ["vllm-cluster"]}, {"units": ["vllm-proxy"]}, "systemd stops it together with vllm-cluster.service"),
    ],
)
def test_lists_that_contradict_each_other_are_refused(
    host: FakeHost, stop: dict[str, list[str]], keep: dict[str, list[str]], words: str
) -> None:
    host.units["vllm-cluster.service"]["bound_by"] = "vllm-proxy.service"
    teardown = plan(host, stop, keep)
    assert [finding.id for finding in teardown.refusals] == ["TEARDOWN.CONFLICT"] * len(teardown.refusals)
    assert any(words in finding.message for finding in teardown.refusals), teardown.refusals


def test_an_exception_by_name_to_a_whole_image_is_no_contradiction(host: FakeHost) -> None:
    teardown = plan(host, {"images": ["img"]}, {"containers": ["embeddings"]})
    assert teardown.refusals == []
    assert "container embeddings" in teardown.kept
    assert "container reranker" in teardown.names


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rm": True}, "was started with --rm: stopping it removes it"),
        ({"exec": 2}, "runs 2 process(es) that docker exec started"),
    ],
)
def test_what_cannot_be_brought_back_is_said_before(host: FakeHost, change: dict[str, object], words: str) -> None:
    # Case 085 is the second: the server runs by docker exec in a container whose main process sleeps.
    host.containers["reranker"] |= change
    findings = plan(host).findings
    assert [finding.id for finding in findings] == ["TEARDOWN.NOT_RESTORABLE"]
    assert words in findings[0].message


def test_unlisted_holders_are_stopped_only_when_allowed(host: FakeHost) -> None:
    host.containers["notebook"] = container()
    assert "container notebook" not in plan(host).names
    assert "container notebook" in plan(host, unlisted=("notebook",)).names


def process(pid: int, parent: int, command: str, name: str = "", **more: str) -> ProcessOwner:
    return ProcessOwner(
        pid,
        command,
        more.get("container", ""),
        more.get("unit", ""),
        "user",
        parent,
        name or command.split()[0][:15],
        1,
    )


def test_orphans_by_title_and_not_by_parent_one() -> None:
    # Case 035: the parent of the EngineCore is the login shell.
    tree = [
        process(1, 0, "/sbin/init", "systemd"),
        process(21913, 21900, "-bash", "bash"),
        process(22001, 21913, "VLLM::EngineCore"),
        process(22002, 22001, "VLLM::Worker_TP0"),
        process(30000, 1, "python3 -m vllm.entrypoints.openai.api_server", "python3"),
        process(30001, 30000, "VLLM::EngineCore"),
        process(40000, 1, "/ray/raylet", "raylet"),
        process(40001, 40000, "ray::IDLE"),
        process(50000, 1, "sglang::scheduler_TP0"),
        process(60000, 1, "VLLM::EngineCore", container="c1"),
        process(60001, 1, "VLLM::EngineCore", container="gone"),
        process(70000, 1, "VLLM::EngineCore", unit="llm.service"),
        process(80000, 1, "python3 train.py", "python3"),
    ]
    found = orphans({item.pid: item for item in tree}, {"c1"}, {"llm.service"})
    assert [item.pid for item in found] == [22001, 22002, 50000, 60001]


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[bytes]]:
    """A process with an engine's title that does not care about SIGTERM."""
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = subprocess.Popen(["VLLM::EngineCore", "-c", code], executable=sys.executable, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()


def test_a_stubborn_process_is_killed_after_the_grace_time(stubborn: subprocess.Popen[bytes]) -> None:
    found = processes()[stubborn.pid]
    assert found.command.startswith("VLLM::EngineCore")
    assert end_processes([found], grace_seconds=0.5) == []
    assert stubborn.wait() == -signal.SIGKILL


def test_a_reused_pid_is_somebody_else(stubborn: subprocess.Popen[bytes]) -> None:
    other = ProcessOwner(stubborn.pid, "VLLM::EngineCore", "", "", "root", 1, "", 12345)
    assert end_processes([other], grace_seconds=0.1) == []
    os.kill(stubborn.pid, 0)


def test_processes_that_the_user_named_are_ended_and_kept_ones_are_not(stubborn: subprocess.Popen[bytes]) -> None:
    stop = Selection.parse({"processes": ["VLLM::EngineCore"]})
    named = plan_teardown(stop, Selection.parse({}), run=FakeHost())
    assert stubborn.pid in [item.pid for item in named.processes]
    assert "TEARDOWN.NOT_RESTORABLE" in [finding.id for finding in named.findings]
    kept = plan_teardown(stop, Selection.parse({"processes": ["VLLM::EngineCore"]}), run=FakeHost())
    assert stubborn.pid not in [item.pid for item in kept.processes]
    assert "TEARDOWN.CONFLICT" in [finding.id for finding in kept.findings]
