"""Each way in which a host can differ from the plan is named; a host that is as planned has none."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _deployment_state
from ansible_collections.dgxspark.serving.plugins.module_utils._deployment_state import differences
from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import examine
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandResult


class Host:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.active, self.enabled, self.image, self.container_image = "active", "enabled", "sha256:1", "sha256:1"
        self.unit = folder / "ray.service"
        self.unit.write_text("[Unit]\n", encoding="utf-8")
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text("{}", encoding="utf-8")
        header = json.dumps({"w": {"data_offsets": [0, 1]}}).encode()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"x")
        self.files = {str(self.unit): "[Unit]\n"}
        self.table = True
        self.state = folder / "deployment.json"
        self.state.write_text(json.dumps({"model_digest": examine(str(model)).digest}), encoding="utf-8")

    def __call__(self, argv: Sequence[str]) -> CommandResult:
        line = " ".join(argv)
        if line.startswith("docker image inspect"):
            found = [{"Id": self.image, "RootFS": {"Layers": []}}]
            return CommandResult(0, json.dumps(found), "") if self.image else CommandResult(1, "", "No such image")
        if line.startswith("docker ps"):
            return CommandResult(0, "1\n", "")
        if line.startswith("docker inspect"):
            return CommandResult(0, json.dumps([self._container()]), "")
        if line.startswith("nft"):
            return CommandResult(0 if self.table else 1, "", "" if self.table else "No such file or directory")
        return CommandResult(0, f"LoadState=loaded\nActiveState={self.active}\nUnitFileState={self.enabled}\n", "")

    def _container(self) -> dict[str, Any]:
        return {
            "Id": "1",
            "Name": "/dgxspark-ray",
            "Image": self.container_image,
            "Config": {"Image": "img", "Labels": {}},
            "State": {"Status": "running"},
            "HostConfig": {},
        }

    def differences(self) -> list[str]:
        return differences(
            self.files,
            {"dgxspark-ray.service": "dgxspark-ray"},
            "img",
            "sha256:1",
            str(self.folder / "model"),
            str(self.state),
            self,
        )


def test_a_host_as_planned(tmp_path: Path) -> None:
    assert Host(tmp_path).differences() == []


def change(**values: str) -> Callable[[Host], None]:
    return lambda host: host.__dict__.update(values)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda host: host.state.unlink(), "no deployment was accepted"),
        (lambda host: host.state.write_text("{"), "no deployment was accepted"),
        (lambda host: host.unit.write_text("[Unit]\n#"), "ray.service differs"),
        (lambda host: host.unit.unlink(), "ray.service is missing"),
        (change(image=""), "image img is missing"),
        (change(image="sha256:2"), "image img is another one"),
        (change(container_image="sha256:2"), "runs another image"),
        (change(active="failed"), "does not run"),
        (change(enabled="disabled"), "is not enabled"),
        (lambda host: (host.folder / "model/config.json").write_text('{"a": 1}'), "is not the accepted model"),
        (lambda host: (host.folder / "model/model.safetensors").unlink(), "model.safetensors is missing"),
    ],
)
def test_each_difference_is_named(tmp_path: Path, spoil: Callable[[Host], object], words: str) -> None:
    host = Host(tmp_path)
    spoil(host)
    (found,) = host.differences()
    assert words in found


@pytest.mark.parametrize(
    ("stands", "found"), [(True, []), (False, ["the firewall's table inet dgxspark does not stand"])]
)
def test_the_table_of_the_firewall_is_looked_for_where_one_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands: bool, found: list[str]
) -> None:
    """A start of nftables takes it away, and no file is another one."""
    host = Host(tmp_path)
    host.table = stands
    assert host.differences() == [], "none is planned"
    rules = tmp_path / "firewall.nft"
    rules.write_text("table", encoding="utf-8")
    monkeypatch.setattr(_deployment_state, "RULES_FILE", str(rules))
    host.files[str(rules)] = "table"
    assert host.differences() == found
