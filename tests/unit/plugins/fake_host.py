"""A host that answers the commands of _workloads like systemd and Docker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandResult


def container(state: str = "running", policy: str = "no", **more: Any) -> dict[str, Any]:
    return {
        "state": state,
        "policy": policy,
        "labels": {},
        "image": "img",
        "rm": False,
        "exec": 0,
        "health": "",
        **more,
    }


def unit(runs: str = "", active: str = "active", enabled: str = "enabled", **more: Any) -> dict[str, Any]:
    """runs: a container that ends with the unit. command: another ExecStart."""
    return {
        "active": active,
        "enabled": enabled,
        "runs": runs,
        "command": "",
        "triggered_by": "",
        "bound_by": "",
        **more,
    }


class FakeHost:
    """Called like a CommandRunner. wakes: what brings a unit or container back when it is stopped, so many times."""

    def __init__(self) -> None:
        self.units: dict[str, dict[str, Any]] = {
            "vllm-cluster.service": unit("glm"),
            "vllm-proxy.service": unit(),
        }
        self.containers: dict[str, dict[str, Any]] = {
            "glm": container(rm=True),
            "reranker": container(policy="unless-stopped"),
            "embeddings": container(policy="always"),
            "old": container("exited"),
        }
        self.wrapper_leaves_container = False
        self.wakes: dict[str, int] = {}
        self.refuses = ""
        self.commands: list[str] = []

    def __call__(self, argv: Sequence[str]) -> CommandResult:
        line = " ".join(argv)
        if self.refuses and self.refuses in line:
            return CommandResult(1, "", "refused by the test")
        program, verb = argv[0], argv[1]
        names = [word for word in argv[2:] if not word.startswith("-")]
        if program == "systemctl" and verb == "show":
            wanted = list(self.units) if names == ["*.service"] else names
            # One block per unit, an empty line between.
            return CommandResult(0, "\n".join(self._show(name) for name in wanted), "")
        if program == "docker" and verb == "ps":
            return CommandResult(0, "".join(f"id-{name}\n" for name in self.containers), "")
        if program == "docker" and verb == "inspect":
            return CommandResult(0, json.dumps([self._inspect(name) for name in self.containers]), "")
        self.commands.append(line)
        for name in names or [""]:
            getattr(self, f"_{program}")(verb, name.removeprefix("id-"), argv)
        return CommandResult(0, "", "")

    def _show(self, name: str) -> str:
        entry = self.units.get(name)
        if entry is None:
            return f"Id={name}\nLoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\n"
        command = entry["command"] or (
            f"/usr/bin/docker run --rm --name {entry['runs']} img" if entry["runs"] else "/usr/bin/proxy"
        )
        return (
            f"Id={name}\nLoadState=loaded\nActiveState={entry['active']}\nSubState=x\nUnitFileState={entry['enabled']}\n"
            f"ExecStart={{ path=/x ; argv[]={command} ; ignore_errors=no ; }}\n"
            f"TriggeredBy={entry['triggered_by']}\nBoundBy={entry['bound_by']}\n"
        )

    def _inspect(self, name: str) -> dict[str, Any]:
        item = self.containers[name]
        policy, _colon, retries = item["policy"].partition(":")
        state = {"Status": item["state"], "StartedAt": "t", "Pid": 5}
        if item["health"]:
            state["Health"] = {"Status": item["health"]}
        return {
            "Id": f"id-{name}",
            "Name": f"/{name}",
            "Image": "sha256:1",
            "Config": {"Image": item["image"], "Labels": item["labels"]},
            "State": state,
            "HostConfig": {
                "RestartPolicy": {"Name": policy, "MaximumRetryCount": int(retries or 0)},
                "AutoRemove": item["rm"],
            },
            "NetworkSettings": {"Ports": {}},
            "ExecIDs": ["e"] * item["exec"] or None,
        }

    def _systemctl(self, verb: str, name: str, _argv: Sequence[str]) -> None:
        if verb in ("daemon-reload", "reset-failed"):
            if name:
                self.units[name]["active"] = self.units[name]["active"].replace("failed", "inactive")
            return
        entry = self.units[name]
        if verb in ("enable", "disable"):
            entry["enabled"] = f"{verb}d"
            return
        if verb == "stop" and self._wake(name):
            return
        if verb == "start" and name.endswith(".socket"):
            service = self.units[name.replace(".socket", ".service")]
            if service["active"] == "active":
                return  # systemd: "already active, refusing"
        entry["active"] = "active" if verb == "start" else "failed"
        if entry["runs"] and not (verb == "stop" and self.wrapper_leaves_container):
            if verb == "start":
                self.containers.setdefault(entry["runs"], container(rm=True))["state"] = "running"
            elif self.containers.get(entry["runs"], {}).get("rm"):
                del self.containers[entry["runs"]]

    def _wake(self, name: str) -> bool:
        self.wakes[name] = self.wakes.get(name, 0) - 1
        return self.wakes[name] >= 0

    def _docker(self, verb: str, name: str, argv: Sequence[str]) -> None:
        if verb == "rm":
            del self.containers[name]
        elif verb == "update":
            self.containers[name]["policy"] = argv[2].removeprefix("--restart=")
        elif verb != "stop" or not self._wake(name):
            self.containers[name]["state"] = {"stop": "exited", "start": "running", "pause": "paused"}[verb]
            if verb == "stop" and self.containers[name]["rm"]:
                del self.containers[name]

    @property
    def states(self) -> dict[str, str]:
        return {name: item["state"] for name, item in self.containers.items()}


def no_sleep(_seconds: float) -> None:
    """Time does not pass in these tests."""
