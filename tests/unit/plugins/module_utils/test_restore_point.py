"""Record, stop and bring back, against a host that behaves like systemd and Docker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _restore_point as restore_point
from ansible_collections.dgxspark.serving.plugins.module_utils._restore_point import (
    RestorePoint,
    bring_back,
    plan_teardown,
    record,
    remove_deployment,
    stop_all,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._selection import Selection
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import (
    CommandResult,
    WorkloadError,
    containers,
)

STOP = Selection.parse({"units": ["vllm-cluster", "vllm-proxy"], "containers": ["reranker", "ghost"]})
KEEP = Selection.parse({"containers": ["embeddings"]})


class Host:
    """Units: name to [active, enabled, container it runs]. Containers: name to state. Answers the commands of _workloads."""

    def __init__(self) -> None:
        self.units: dict[str, dict[str, Any]] = {
            "vllm-cluster.service": {"active": "active", "enabled": "enabled", "runs": "glm"},
            "vllm-proxy.service": {"active": "active", "enabled": "enabled", "runs": ""},
        }
        self.containers: dict[str, dict[str, Any]] = {
            "glm": {"state": "running", "policy": "no", "labels": {}},
            "reranker": {"state": "running", "policy": "unless-stopped", "labels": {}},
            "embeddings": {"state": "running", "policy": "always", "labels": {}},
            "old": {"state": "exited", "policy": "no", "labels": {}},
        }
        self.wrapper_leaves_container = False
        self.respawns = ""
        self.refuses = ""
        self.commands: list[str] = []

    def __call__(self, argv: Sequence[str]) -> CommandResult:
        line = " ".join(argv)
        if self.refuses and self.refuses in line:
            return CommandResult(1, "", "refused by the test")
        program, verb = argv[0], argv[1]
        if program == "systemctl" and verb == "show":
            # One block per unit, an empty line between.
            return CommandResult(0, "\n".join(self._show(name) for name in argv[2:] if name[0] != "-"), "")
        if program == "docker" and verb == "ps":
            return CommandResult(0, "".join(f"id-{name}\n" for name in self.containers), "")
        if program == "docker" and verb == "inspect":
            return CommandResult(0, json.dumps([self._inspect(name) for name in self.containers]), "")
        self.commands.append(line)
        getattr(self, f"_{program}")(verb, argv[-1], argv)
        return CommandResult(0, "", "")

    def _show(self, name: str) -> str:
        unit = self.units.get(name)
        if unit is None:
            return f"Id={name}\nLoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\n"
        command = (
            f"argv[]=/usr/bin/docker run --rm --name {unit['runs']} img" if unit["runs"] else "argv[]=/usr/bin/proxy"
        )
        return (
            f"Id={name}\nLoadState=loaded\nActiveState={unit['active']}\nSubState=x\n"
            f"UnitFileState={unit['enabled']}\nExecStart={{ path=/x ; {command} ; }}\n"
        )

    def _inspect(self, name: str) -> dict[str, Any]:
        item = self.containers[name]
        return {
            "Id": f"id-{name}",
            "Name": f"/{name}",
            "Image": "sha256:1",
            "Config": {"Image": "img", "Labels": item["labels"]},
            "State": {"Status": item["state"], "StartedAt": "t", "Pid": 5},
            "HostConfig": {"RestartPolicy": {"Name": item["policy"]}},
            "NetworkSettings": {"Ports": {}},
        }

    def _systemctl(self, verb: str, name: str, _argv: Sequence[str]) -> None:
        if verb == "daemon-reload":
            return
        unit = self.units[name]
        if verb in ("enable", "disable"):
            unit["enabled"] = f"{verb}d"
            return
        unit["active"] = "active" if verb == "start" else "failed"
        if unit["runs"] and not (verb == "stop" and self.wrapper_leaves_container):
            self.containers[unit["runs"]]["state"] = "running" if verb == "start" else "exited"

    def _docker(self, verb: str, identifier: str, argv: Sequence[str]) -> None:
        name = identifier.removeprefix("id-")
        if verb == "rm":
            del self.containers[name]
        elif verb == "update":
            self.containers[name]["policy"] = argv[2].removeprefix("--restart=")
        else:
            self.containers[name]["state"] = {"stop": "exited", "start": "running", "pause": "paused"}[verb]
        if verb == "stop" and self.respawns == name:
            self.containers[name]["state"] = "running"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    monkeypatch.setattr(restore_point, "MANAGED_FILES", (str(tmp_path / "etc" / "ray.env"),))
    monkeypatch.setattr(restore_point, "RUN_FILE", str(tmp_path / "run.env"))
    return Host()


def no_sleep(_seconds: float) -> None:
    """Time does not pass in these tests."""


def states(host: Host) -> dict[str, str]:
    return {name: item["state"] for name, item in host.containers.items()}


def test_the_plan_names_what_is_stopped_kept_and_missing(host: Host) -> None:
    teardown = plan_teardown(STOP, KEEP, run=host)
    assert teardown.names == ["unit vllm-cluster.service", "unit vllm-proxy.service", "container reranker"]
    assert teardown.kept == ("container embeddings",)
    assert teardown.missing == ("ghost",)
    assert host.commands == []


def test_stop_and_bring_back(host: Host, tmp_path: Path) -> None:
    teardown = plan_teardown(STOP, KEEP, run=host)
    path = record("run1", teardown).save(str(tmp_path / "restore"))
    assert stop_all(teardown, host, no_sleep) == []
    assert states(host) == {"glm": "exited", "reranker": "exited", "embeddings": "running", "old": "exited"}
    assert host.containers["reranker"]["policy"] == "no"
    assert host.units["vllm-cluster.service"]["enabled"] == "disabled"
    restored, problems = bring_back(RestorePoint.load(path), host, no_sleep)
    assert problems == []
    assert sorted(restored) == ["container reranker", "unit vllm-cluster.service", "unit vllm-proxy.service"]
    assert states(host) == {"glm": "running", "reranker": "running", "embeddings": "running", "old": "exited"}
    assert host.containers["reranker"]["policy"] == "unless-stopped"
    assert host.units["vllm-cluster.service"]["enabled"] == "enabled"
    assert not any("embeddings" in command for command in host.commands)


def test_a_second_teardown_finds_nothing(host: Host) -> None:
    stop_all(plan_teardown(STOP, KEEP, run=host), host, no_sleep)
    assert plan_teardown(STOP, KEEP, run=host).empty


def test_a_container_that_outlives_its_unit_is_stopped_too(host: Host) -> None:
    # Case 081: systemd stops only the wrapper.
    host.wrapper_leaves_container = True
    assert stop_all(plan_teardown(STOP, KEEP, run=host), host, no_sleep) == []
    assert states(host)["glm"] == "exited"


def test_what_somebody_starts_again_is_named(host: Host) -> None:
    host.respawns = "reranker"
    assert stop_all(plan_teardown(STOP, KEEP, run=host), host, no_sleep) == ["container reranker"]


def test_a_paused_container_comes_back_paused(host: Host) -> None:
    host.containers["reranker"]["state"] = "paused"
    teardown = plan_teardown(STOP, KEEP, run=host)
    point = record("run1", teardown)
    stop_all(teardown, host, no_sleep)
    bring_back(point, host, no_sleep)
    assert states(host)["reranker"] == "paused"


def test_what_cannot_be_brought_back_is_named_and_the_rest_runs(host: Host) -> None:
    teardown = plan_teardown(STOP, KEEP, run=host)
    point = record("run1", teardown)
    stop_all(teardown, host, no_sleep)
    host.refuses = "start vllm-proxy"
    restored, problems = bring_back(point, host, no_sleep)
    assert "unit vllm-cluster.service" in restored
    assert len(problems) == 1
    assert problems[0].startswith("unit vllm-proxy.service: Cannot start unit vllm-proxy.service")


def test_unlisted_holders_are_stopped_only_when_named(host: Host) -> None:
    host.containers["notebook"] = {"state": "running", "policy": "no", "labels": {}}
    assert "container notebook" not in plan_teardown(STOP, KEEP, run=host).names
    assert "container notebook" in plan_teardown(STOP, KEEP, ["notebook"], run=host).names


def test_our_own_deployment_is_replaced_and_its_files_come_back(host: Host, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    managed = tmp_path / "etc" / "ray.env"
    managed.write_text("A=1\n", encoding="utf-8")
    host.units["dgxspark-ray.service"] = {"active": "active", "enabled": "enabled", "runs": "dgxspark-ray"}
    host.containers["dgxspark-ray"] = {
        "state": "running",
        "policy": "no",
        "labels": {"io.dgxspark.serving.managed": "true"},
    }
    teardown = plan_teardown(STOP, KEEP, run=host)
    assert teardown.names[0] == "unit dgxspark-ray.service"
    point = record("run2", teardown)
    stop_all(teardown, host, no_sleep)
    assert f"file {managed}" in remove_deployment(host)
    assert not managed.exists()
    assert "dgxspark-ray" not in host.containers
    host.containers["dgxspark-ray"] = {"state": "exited", "policy": "no", "labels": {}}
    bring_back(point, host, no_sleep)
    assert managed.read_text(encoding="utf-8") == "A=1\n"
    assert host.units["dgxspark-ray.service"]["active"] == "active"


def test_the_original_and_the_newest_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "restore"
    for number in range(8):
        RestorePoint(run=f"run{number}", created=float(number)).save(str(folder))
    names = sorted(path.stem for path in folder.iterdir())
    assert names == ["original", "run3", "run4", "run5", "run6", "run7"]
    assert RestorePoint.load(str(folder / "original.json")).run == "run0"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_damaged_record_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{", encoding="utf-8")
    with pytest.raises(WorkloadError, match="Cannot read restore point"):
        RestorePoint.load(str(tmp_path / "x.json"))


def test_an_engine_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="Cannot list the containers"):
        containers(lambda _argv: CommandResult(1, "", "Cannot connect to the Docker daemon"))
