"""What a record holds, how long it is kept, and that what it says comes back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _restore_point as restore_point
from ansible_collections.dgxspark.serving.plugins.module_utils import _rollback as rollback
from ansible_collections.dgxspark.serving.plugins.module_utils import _teardown as teardown_util
from ansible_collections.dgxspark.serving.plugins.module_utils._listeners import Listener
from ansible_collections.dgxspark.serving.plugins.module_utils._process_owner import ProcessOwner
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import (
    RestorePoint,
    in_start_order,
    record,
    record_names,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._rollback import (
    bring_back,
    is_in_force,
    remove_deployment,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import Selection
from ansible_collections.dgxspark.serving.plugins.module_utils._teardown import Teardown, plan_teardown, stop_all
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandResult,
    WorkloadError,
    containers,
)
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_host import FakeHost, container, no_sleep, unit

STOP = {"units": ["vllm-cluster", "vllm-proxy"], "containers": ["reranker"]}
KEEP = {"containers": ["embeddings"]}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHost:
    monkeypatch.setattr(restore_point, "MANAGED_FILES", (str(tmp_path / "etc" / "*"),))
    monkeypatch.setattr(restore_point, "SECRET_FILES", (str(tmp_path / "etc" / "api-key"),))
    monkeypatch.setattr(rollback, "SECRET_FILES", (str(tmp_path / "etc" / "api-key"),))
    for function in (teardown_util.suspend, rollback._suspended):
        monkeypatch.setattr(function, "__defaults__", (str(tmp_path / "system"),))
    (tmp_path / "etc").mkdir()
    return FakeHost()


def plan(host: FakeHost, stop: dict[str, list[str]] | None = None) -> Teardown:
    return plan_teardown(
        Selection.parse(STOP if stop is None else stop), Selection.parse(KEEP), run=host, proc_root="/var/empty"
    )


def stopped(host: FakeHost, folder: Path, stop: dict[str, list[str]] | None = None) -> RestorePoint:
    """Record and stop, then read the record again."""
    Path("/var/empty").mkdir(exist_ok=True)
    teardown = plan(host, stop)
    record("run1", teardown).save(str(folder / "restore"))
    assert stop_all(teardown, host, no_sleep) == []
    return RestorePoint.load("run1", str(folder / "restore"))


def test_stop_and_bring_back(host: FakeHost, tmp_path: Path) -> None:
    before = host.states
    point = stopped(host, tmp_path)
    result = bring_back(point, host, no_sleep)
    assert result.problems == []
    assert sorted(result.restored) == ["container reranker", "unit vllm-cluster.service", "unit vllm-proxy.service"]
    assert host.states == before
    assert host.containers["reranker"]["policy"] == "unless-stopped"
    assert host.units["vllm-cluster.service"]["enabled"] == "enabled"
    assert not any("embeddings" in command for command in host.commands)


def test_a_second_rollback_changes_nothing(host: FakeHost, tmp_path: Path) -> None:
    point = stopped(host, tmp_path)
    assert not is_in_force(point, host)
    bring_back(point, host, no_sleep)
    assert is_in_force(point, host)
    commands = len(host.commands)
    assert bring_back(point, host, no_sleep).changed == []
    assert len(host.commands) == commands


def test_an_interrupted_teardown_keeps_its_first_record(host: FakeHost, tmp_path: Path) -> None:
    teardown = plan(host)
    record("run1", teardown).save(str(tmp_path / "restore"))
    host(["systemctl", "stop", "vllm-cluster.service"])
    host(["systemctl", "disable", "vllm-cluster.service"])
    point = stopped(host, tmp_path)
    assert [entry["name"] for entry in point.units] == ["vllm-cluster.service", "vllm-proxy.service"]
    assert point.units[0]["running"] is True
    bring_back(point, host, no_sleep)
    assert host.units["vllm-cluster.service"] == unit("glm")


@pytest.mark.parametrize("policy", ["no", "always", "unless-stopped", "on-failure", "on-failure:5"])
def test_every_restart_policy_comes_back(host: FakeHost, tmp_path: Path, policy: str) -> None:
    host.containers["reranker"]["policy"] = policy
    bring_back(stopped(host, tmp_path), host, no_sleep)
    assert host.containers["reranker"] == container(policy=policy)


def test_a_paused_container_comes_back_paused(host: FakeHost, tmp_path: Path) -> None:
    host.containers["reranker"]["state"] = "paused"
    bring_back(stopped(host, tmp_path), host, no_sleep)
    assert host.states["reranker"] == "paused"


def test_a_unit_that_was_made_unable_to_start_starts_again(host: FakeHost, tmp_path: Path) -> None:
    host.wakes = {"vllm-proxy.service": 1}
    point = stopped(host, tmp_path)
    assert list((tmp_path / "system").glob("*.d"))
    assert bring_back(point, host, no_sleep).problems == []
    assert not list((tmp_path / "system").glob("*.d"))


@pytest.mark.parametrize("service_runs", [False, True])
def test_a_socket_starts_before_its_service(host: FakeHost, tmp_path: Path, service_runs: bool) -> None:
    host.units["vllm-proxy.socket"] = unit()
    host.units["vllm-proxy.service"]["triggered_by"] = "vllm-proxy.socket"
    point = stopped(host, tmp_path)
    assert host.units["vllm-proxy.socket"]["active"] == "inactive"
    if service_runs:
        host(["systemctl", "start", "vllm-proxy.service"])
    assert bring_back(point, host, no_sleep).problems == []
    assert host.units["vllm-proxy.socket"]["active"] == "active"
    assert host.units["vllm-proxy.service"]["active"] == "active"


def test_a_unit_that_does_not_start_is_not_waited_for(host: FakeHost, tmp_path: Path) -> None:
    point = stopped(host, tmp_path)
    slept: list[float] = []
    host.units["vllm-proxy.service"]["active"] = "failed"
    host.refuses = "start --no-block"
    result = bring_back(point, host, slept.append)
    assert any("unit vllm-proxy.service could not be started" in problem for problem in result.problems)
    assert slept == []


def test_what_cannot_be_brought_back_is_named_and_the_rest_runs(host: FakeHost, tmp_path: Path) -> None:
    point = stopped(host, tmp_path)
    del host.containers["reranker"]
    result = bring_back(point, host, no_sleep)
    assert result.restored == ["unit vllm-cluster.service", "unit vllm-proxy.service"]
    assert result.problems == ["container reranker could not be started: does not exist any more"]


def test_health_and_ports_are_waited_for(host: FakeHost, tmp_path: Path) -> None:
    host.containers["reranker"]["health"] = "healthy"
    point = stopped(host, tmp_path)
    point.units[1]["ports"] = [1]
    host.containers["reranker"]["health"] = "starting"
    said: list[str] = []
    result = bring_back(point, host, no_sleep, wait_seconds=3, say=said.append)
    assert result.problems == [
        "container reranker is starting, was healthy",
        "unit vllm-proxy.service does not listen on port 1 yet",
    ]
    assert said == [f"waiting: {'; '.join(result.problems)}"]


def test_what_others_of_a_compose_project_need_starts_first() -> None:
    def item(service: str, *needs: str) -> dict[str, object]:
        return {"name": service, "compose_project": "p", "compose_service": service, "compose_needs": list(needs)}

    stopped_in_order = [item("db"), item("api", "db", "cache"), item("cache", "db"), item("web", "api")]
    assert [entry["name"] for entry in in_start_order(stopped_in_order)] == ["db", "cache", "api", "web"]


def test_our_own_deployment_is_replaced_and_its_files_come_back_without_secrets(host: FakeHost, tmp_path: Path) -> None:
    managed, secret = tmp_path / "etc" / "ray.env", tmp_path / "etc" / "api-key"
    managed.write_text("A=1\n", encoding="utf-8")
    secret.write_text("hush", encoding="utf-8")
    host.units["dgxspark-ray.service"] = unit("dgxspark-ray")
    host.containers["dgxspark-ray"] = container(rm=True, labels={"io.dgxspark.serving.managed": "true"})
    point = stopped(host, tmp_path)
    assert point.units[0]["name"] == "dgxspark-ray.service"
    assert list(point.files) == [str(managed)]
    removed = remove_deployment(run=host)
    assert f"file {managed}" in removed
    assert not managed.exists()
    assert secret.exists()
    assert bring_back(point, host, no_sleep).problems == []
    assert managed.read_text(encoding="utf-8") == "A=1\n"
    assert host.units["dgxspark-ray.service"]["active"] == "active"
    assert f"file {secret}" in remove_deployment(with_secrets=True, run=host)


def test_only_fixed_ports_are_recorded(monkeypatch: pytest.MonkeyPatch, host: FakeHost, tmp_path: Path) -> None:
    listeners = [
        Listener(port, "0.0.0.0", "1", pid)
        for pid, ports in ((7, (8000, 20121, 41234)), (8, (8080, 41235)))
        for port in ports
    ]
    monkeypatch.setattr(restore_point, "all_listeners", lambda: listeners)
    units = {7: "dgxspark-vllm.service", 8: "vllm-proxy.service"}
    owners = {pid: ProcessOwner(pid, "", "", name, "root", 1) for pid, name in units.items()}
    monkeypatch.setattr(restore_point, "process_owner", owners.get)
    host.units["dgxspark-vllm.service"] = unit()
    ports = {entry["name"]: entry["ports"] for entry in stopped(host, tmp_path).units}
    assert ports["dgxspark-vllm.service"] == [8000] and ports["vllm-proxy.service"] == [8080]


def test_the_original_and_the_newest_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "restore"
    for number in range(8):
        RestorePoint(run=f"run{number}", created=float(number)).save(str(folder))
    assert record_names(str(folder)) == ["run7", "run6", "run5", "run4", "run3", "original"]
    assert RestorePoint.load("original", str(folder)).run == "run0"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_record_from_a_clock_that_is_behind_is_not_forgotten_at_once(tmp_path: Path) -> None:
    for number in range(6):
        path = RestorePoint(run=f"20261201T12000{number}", created=float(number)).save(str(tmp_path))
        os.utime(path, (number, number))
    RestorePoint(run="20261201T100000", created=9.0).save(str(tmp_path))
    newest, *others = record_names(str(tmp_path))
    assert newest == "20261201T100000" and len(others) == 5
    assert "20261201T120001" not in others


def test_a_damaged_record_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{", encoding="utf-8")
    with pytest.raises(WorkloadError, match="Cannot read restore point"):
        RestorePoint.load("x", str(tmp_path))
    with pytest.raises(WorkloadError, match=r"There is no restore point y .* there are: x"):
        RestorePoint.load("y", str(tmp_path))


def test_an_engine_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="Cannot list the containers"):
        containers(lambda _argv: CommandResult(1, "", "Cannot connect to the Docker daemon"))


@pytest.mark.parametrize(
    ("name", "ports", "kept"),
    [
        # As seen on the lab: after a restart Ray's workers and the engine's rendezvous have other ports.
        ("dgxspark-ray.service", {6379, 10001, 20042, 20054, 20100}, {6379, 10001}),
        ("dgxspark-vllm.service", {8000, 20096, 41233}, {8000}),
        ("somebody.service", {8000, 20096, 41233}, {8000, 20096}),
    ],
)
def test_ports_that_a_restart_changes_are_not_waited_for(name: str, ports: set[int], kept: set[int]) -> None:
    assert ports - restore_point._picked(name, ports) == kept
