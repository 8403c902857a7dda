"""What a host must have: kernel, services, GPU runtime, devices, room on disks; and what filters its packets."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_disks as disks
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_firewall as firewall
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_kernel as kernel
from ansible_collections.dgxspark.serving.plugins.module_utils import _host_runtime as runtime
from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import is_within
from ansible_collections.dgxspark.serving.plugins.module_utils._host_needs import PICKED_BY_KERNEL, needs_of
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandResult, CommandRunner, units

# Case 016: kernel 7.0.0-1019 with the broken account.
BROKEN = "MemTotal: 127600748 kB\nMemFree: 92274688 kB\nMemAvailable: 1000 kB\nCmaTotal: 0 kB\nCmaFree: 940604 kB\n"
SOUND = BROKEN.replace("940604", "0")


@pytest.mark.parametrize(
    ("release", "command_line", "meminfo", "found"),
    [
        ("7.0.0-1019-nvidia", "root=/dev/nvme0n1p2", BROKEN, True),
        ("7.0.0-1019-nvidia", "root=/dev/nvme0n1p2 kho=off", BROKEN, False),
        ("7.0.0-1019-nvidia", "root=/dev/nvme0n1p2", SOUND, False),
        ("6.17.0-1032-nvidia", "", BROKEN, False),
    ],
)
def test_kernel(release: str, command_line: str, meminfo: str, found: bool) -> None:
    ids = [finding.id for finding in kernel.judge_kernel("host", release, command_line, meminfo)]
    assert ids == (["HOST.KERNEL_KNOWN_BAD"] if found else [])


def test_services_that_kill_the_largest_process() -> None:
    rows = [
        {"name": "earlyoom.service", "active": "active"},
        {"name": "systemd-oomd.service", "active": "inactive"},
        {"name": "vllm.service", "active": "active"},
    ]
    (finding,) = kernel.judge_killers("host", rows)
    assert finding.evidence == "earlyoom.service active" and "spark_steer_earlyoom" in finding.remedy
    assert kernel.judge_killers("host", rows, steered=["earlyoom.service"]) == []


@pytest.mark.parametrize(
    ("texts", "removes"),
    [
        ([], True),
        (["[Login]\n#RemoveIPC=no\n"], True),
        (["[Login]\nRemoveIPC=no\n"], False),
        (["RemoveIPC=no", "RemoveIPC=yes"], True),
    ],
)
def test_logind(texts: list[str], removes: bool) -> None:
    assert kernel.removes_ipc(texts) is removes


def test_rootless_engine_names_the_trap_of_logind_only_where_it_is_set() -> None:
    assert kernel.judge_rootless("host", False, True) == []
    (trapped,) = kernel.judge_rootless("host", True, True)
    (plain,) = kernel.judge_rootless("host", True, False)
    assert "RemoveIPC=yes" in trapped.message
    assert "RemoveIPC" not in plain.message


DOCKER = {"version": "29.1", "runtimes": ["runc"]}
WITH_NVIDIA = {"version": "29.1", "runtimes": ["nvidia", "runc"]}


@pytest.mark.parametrize(
    ("arguments", "docker", "specifications", "hook", "words"),
    [
        (["--gpus", "all"], DOCKER, [], None, "no runtime nvidia"),
        (["--gpus", "all"], DOCKER, [], "/usr/bin/nvidia-container-runtime-hook", ""),
        (["--gpus", "all"], WITH_NVIDIA, [], None, ""),
        (["--runtime", "nvidia"], DOCKER, ["/etc/cdi/nvidia.yaml"], None, "no runtime nvidia"),
        (["--device", "nvidia.com/gpu=all"], WITH_NVIDIA, [], None, "no CDI specification"),
        (["--device", "nvidia.com/gpu=all"], DOCKER, ["/etc/cdi/nvidia.yaml"], None, ""),
        # The lab's containers get no GPU.
        ([], DOCKER, [], None, ""),
        # An engine that does not answer has its own finding.
        (["--gpus", "all"], {}, [], None, ""),
    ],
)
def test_way_of_the_gpu_into_a_container(arguments, docker, specifications, hook, words) -> None:
    findings = runtime.judge_gpu_runtime("host", arguments, docker, specifications, lambda _name: hook)
    assert [words in finding.message for finding in findings] == ([True] if words else [])


@pytest.mark.parametrize(
    ("ulimits", "there", "ids"),
    [
        (["memlock=-1"], True, []),
        (["memlock=-1"], False, ["HOST.DEVICE_MISSING"]),
        (["nofile=1048576"], True, ["HOST.MEMLOCK_LIMITED"]),
    ],
)
def test_devices_and_locked_memory(ulimits: list[str], there: bool, ids: list[str]) -> None:
    wishes = runtime.ContainerWishes(devices=["/dev/infiniband"], ulimits=ulimits)
    assert [finding.id for finding in runtime.judge_devices("host", wishes, lambda _path: there)] == ids


@pytest.mark.parametrize(("gib", "ids"), [(0.0625, ["HOST.SHARED_MEMORY_SMALL"]), (1.0, []), (60.0, [])])
def test_shared_memory(gib: float, ids: list[str]) -> None:
    assert [finding.id for finding in runtime.judge_shared_memory("host", gib)] == ids


def test_host_without_rdma_needs_neither() -> None:
    assert runtime.judge_devices("host", runtime.ContainerWishes()) == []


def test_cdi_specifications(tmp_path: Path) -> None:
    for name in ("nvidia.yaml", "nvidia.yaml.bak", "vendor.json"):
        (tmp_path / name).touch()
    assert runtime.cdi_specifications([str(tmp_path)]) == [str(tmp_path / "nvidia.yaml")]


@pytest.mark.parametrize(("free", "present", "found"), [(120.0, 0.0, False), (100.0, 0.0, True), (1.0, 113.0, False)])
def test_room_for_the_weights(free: float, present: float, found: bool) -> None:
    disk = {"path": "/srv/models", "free_gib": free, "total_gib": 900.0}
    assert bool(disks.judge_room("host", "model", disk, 113.6, present)) is found


def test_weights_that_are_there_already_are_counted_through_links(tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    with blob.open("wb") as handle:
        handle.truncate(2 * disks.GIB)
    folder = tmp_path / "model"
    folder.mkdir()
    os.symlink(blob, folder / "model.safetensors")
    assert disks.weights_gib(str(folder)) == 2.0
    assert disks.weights_gib(str(tmp_path / "nothing")) == 0.0


def answers(**outputs: str) -> CommandRunner:
    def run(argv: Sequence[str]) -> CommandResult:
        return CommandResult(0, outputs[argv[0]], "") if argv[0] in outputs else CommandResult(127, "", "not found")

    return run


def test_images_are_found_by_tag_and_by_id() -> None:
    inspected = json.dumps(
        [{"Id": "sha256:1", "RepoTags": ["vllm-node:latest"], "RepoDigests": [], "Size": 3 * disks.GIB}]
    )
    found = disks.local_images(["vllm-node", "sha256:1", "other:1"], answers(docker=inspected))
    assert found == {name: {"id": "sha256:1", "size_gib": 3.0, "digests": []} for name in ("vllm-node", "sha256:1")}


IPTABLES = """\
-P INPUT ACCEPT
-P FORWARD DROP
-P OUTPUT ACCEPT
-N DOCKER
-A INPUT -s 192.168.240.13/32 -p tcp -m tcp --dport 6379 -j DROP
-A FORWARD -j DOCKER-USER
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
"""
NFTABLES = """\
table ip filter {
  chain INPUT {
    type filter hook input priority filter; policy accept;
    ip saddr 192.168.240.13 tcp dport 6379 counter packets 0 bytes 0 drop
  }
}
table inet mine {
  chain input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    tcp dport 22 accept
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
  }
}
"""


def test_rules_are_read_once_and_docker_s_own_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    settings = tmp_path / "ufw.conf"
    settings.write_text("# on or off\nENABLED=yes\n")
    found = firewall.read_firewalls(answers(iptables=IPTABLES, nft=NFTABLES), str(settings))
    assert found == {
        "ufw": True,
        "readable": True,
        "forward": "DROP",
        "blocking": [
            "ufw is active",
            "iptables: -A INPUT -s 192.168.240.13/32 -p tcp -m tcp --dport 6379 -j DROP",
            "nftables: inet mine input: policy drop",
        ],
    }


def test_unprivileged_user_sees_no_rules_and_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = firewall.read_firewalls(answers(iptables=IPTABLES), str(tmp_path / "none"))
    assert (found["readable"], found["blocking"]) == (False, [])


def test_units_are_read_in_one_call() -> None:
    calls = []

    def run(argv: Sequence[str]) -> CommandResult:
        calls.append(argv)
        return CommandResult(
            0,
            "Id=a.service\nLoadState=loaded\nActiveState=active\n\nId=b.service\nLoadState=not-found\nActiveState=inactive\n",
            "",
        )

    first, second = units(["a", "b.service"], run)
    assert (first.name, first.exists, second.name, second.exists) == ("a.service", True, "b.service", False)
    assert len(calls) == 1
    assert units([], run) == [] and len(calls) == 1


def plan(role: str) -> dict[str, object]:
    hosts = [
        {"name": "head", "role": "head", "control_address": "192.168.240.12", "fabric_addresses": ["192.168.240.12"]},
        {
            "name": "worker",
            "role": "worker",
            "control_address": "192.168.240.13",
            "fabric_addresses": ["192.168.240.13"],
        },
    ]
    return {
        "host": next(host for host in hosts if host["role"] == role),
        "hosts": hosts,
        "ports": {
            "ray": 6379,
            "ray_workers": [20000, 20099],
            "ray_node_manager": 20100,
            "ray_object_manager": 20101,
            "ray_runtime_env_agent": 20102,
            "ray_agents": [20103, 20104],
            "trial": 20112,
            "staging": {"image": 20110, "weights": 20111, "weights_reports": 20113},
        },
        "firewall": True,
        "open_ports": [40022],
        "api": {"port": 8000},
        "model": {"folder": "/srv/models/m", "weights_gb": 122},
        "candidates": [{"image": "vllm-node:1"}],
        "unlisted_holders": "fail",
        "stop": {"units": ["old.service"]},
        "keep": {"units": []},
    }


def test_needs_of_head_and_worker() -> None:
    head, worker = needs_of(plan("head")), needs_of(plan("worker"))
    assert {6379, 8000, 20110, 20111} <= set(head.ports)
    assert set(worker.ports) == set(range(20000, 20105))
    assert head.probe and worker.probe
    assert dict(head.probe.peers) == {"192.168.240.13": (20000, 20100, 20101, PICKED_BY_KERNEL)}
    assert set(worker.probe.peers["192.168.240.12"]) == set(head.probe.ports)
    assert head.needed_gib == {"model": 113.621}
    assert "old.service" in head.units
    assert is_within(40021, head.closed) and is_within(6379, worker.closed) and not is_within(40022, head.closed)


# As nft 1.0.6 prints it.
FABRIC_SET = """\
table inet dgxspark {
    set fabric {
        type ipv4_addr
        elements = { 192.168.240.12, 192.168.241.12 }
    }
}
"""


def test_whom_our_own_firewall_lets_in(tmp_path: Path) -> None:
    rules = tmp_path / "firewall.nft"
    run = answers(nft=FABRIC_SET)
    assert firewall.addresses_let_in(run, str(rules)) is None
    rules.touch()
    assert firewall.addresses_let_in(run, str(rules)) == ["192.168.240.12", "192.168.241.12"]
    # The file is there, the table is not.
    assert firewall.addresses_let_in(lambda argv: CommandResult(1, "", "No such file"), str(rules)) is None
