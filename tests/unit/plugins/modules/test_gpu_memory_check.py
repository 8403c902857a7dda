# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import docker
import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _memory_check
from ansible_collections.dgxspark.serving.plugins.modules import gpu_memory_check

GB10 = {
    "index": "0",
    "uuid": "GPU-00000000-1111-2222-3333-444444444444",
    "name": "NVIDIA GB10",
    "compute_cap": "12.1",
    "utilization.gpu": "3 %",
    "driver_version": "580.95.05",
}
H200 = {
    "index": "0",
    "uuid": "GPU-00000000-1111-2222-3333-444444444444",
    "name": "NVIDIA H200",
    "compute_cap": "9.0",
    "memory.total": "143771 MiB",
    "memory.used": "21007 MiB",
    "memory.free": "122150 MiB",
    "utilization.gpu": "0 %",
    "mig.mode.current": "Disabled",
    "driver_version": "580.159.04",
}
# A Spark at rest, with little page cache; values of case 041 with the parts that let a gap show.
IDLE_MEMINFO = """\
MemTotal:       127602216 kB
MemFree:       118566368 kB
MemAvailable:  119366368 kB
Buffers:           90112 kB
Cached:          1884160 kB
AnonPages:       2621440 kB
Slab:            1048576 kB
"""

# A stand-in that answers as the real program does; it reads what to answer from the file beside it.
NVIDIA_SMI = """\
#!{python}
import json, sys, time
answers = json.load(open(__file__ + ".json"))
time.sleep(answers["delay"])
if answers["complaint"]:
    sys.exit(answers["complaint"])
query = next((word for word in sys.argv[1:] if word.startswith("--query-")), "")
if not query:
    sys.exit(print(answers["table"]))
kind, fields = query.split("=")
fields = fields.split(",")
unknown = [name for name in fields if name in answers["unknown_fields"]]
if unknown:
    print(f'Field "{{unknown[0]}}" is not a valid field to query.')
    sys.exit(2)
sizes = ("memory.total", "memory.used", "memory.free", "used_gpu_memory")
print(answers["banner"], end="")
print(", ".join(name + (" [MiB]" if name in sizes else " [%]" if name == "utilization.gpu" else "") for name in fields))
for row in answers["gpus" if kind == "--query-gpu" else "processes"]:
    print(", ".join(row.get(name, "[N/A]") for name in fields))
"""


class FakeHost:
    """A C(proc) file system and an nvidia-smi of our own."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.nvidia_smi = folder / "nvidia-smi"
        (self.proc / "sys/vm").mkdir(parents=True)
        self.meminfo(IDLE_MEMINFO)
        self.gpus()
        self.process(1, "/sbin/init", cgroup="0::/init.scope")

    def meminfo(self, text: str) -> None:
        (self.proc / "meminfo").write_text(text)

    def gpus(self, *gpus: dict[str, str], processes: list[dict[str, str]] | None = None, **answers: Any) -> None:
        self.nvidia_smi.write_text(NVIDIA_SMI.format(python=sys.executable))
        self.nvidia_smi.chmod(0o755)
        defaults = {"table": "", "banner": "", "unknown_fields": [], "delay": 0, "complaint": ""}
        text = json.dumps({**defaults, "gpus": gpus or (GB10,), "processes": processes or [], **answers})
        (self.nvidia_smi.parent / "nvidia-smi.json").write_text(text)

    def process(self, pid: int, command: str, cgroup: str = "0::/", parent: int = 1, uid: int = 0) -> None:
        folder = self.proc / str(pid)
        folder.mkdir()
        name = command.split()[0].rsplit("/", 1)[-1]
        (folder / "status").write_text(f"Name:\t{name}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        (folder / "cgroup").write_text(cgroup + "\n")

    def in_pid_namespace(self, inode: int) -> None:
        (self.proc / "self/ns").mkdir(parents=True)
        os.symlink(f"pid:[{inode}]", self.proc / "self/ns/pid")

    @property
    def options(self) -> dict[str, Any]:
        return {
            "proc_root": str(self.proc),
            "nvidia_smi": str(self.nvidia_smi),
            "docker_host": f"unix://{self.proc}/no-engine.sock",
        }


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.fixture
def check(host: FakeHost, run_module):
    def run(check_mode: bool = False, **options: Any) -> dict[str, Any]:
        return run_module(gpu_memory_check, check_mode=check_mode, **{**host.options, **options})

    return run


def finding_ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


def processes_of(text: str, fields: str) -> list[dict[str, str]]:
    """Rows as nvidia-smi printed them, under the names of the fields."""
    return [dict(zip(fields.split(","), line.split(", "), strict=True)) for line in text.splitlines()]


def test_case_029_desktop_programs_are_graphics_and_no_number_is_invented(host, check, case_text):
    # The driver of the case knows the table only.
    total, _used, free, _shared, _cached, available = case_text("029", "free.txt").splitlines()[1].split()[1:]
    host.meminfo(f"MemTotal: {total} kB\nMemFree: {free} kB\nMemAvailable: {available} kB\n")
    host.gpus(table=case_text("029", "nvidia-smi.txt"), unknown_fields=["compute_cap"])
    host.process(
        4761, "/snap/firefox/7182/usr/lib/firefox/firefox --profile x", cgroup="0::/user.slice/user-1000.slice"
    )
    result = check(required_gib=100)
    (gpu,) = result["gpus"]
    assert (gpu["memory_model"], gpu["total_gib"], gpu["used_gib"]) == ("unified", 119.699, None)
    assert result["memory"]["available_gib"] == 114.847
    assert result["fits"] is True
    assert [(h["pid"], h["used_gib"], h["graphics"]) for h in result["holders"]] == [
        (4761, 0.267, True),
        (4399, 0.122, True),
        (4174, 0.082, True),
    ]
    # The table cuts long names.
    assert result["holders"][0]["process"] == "/snap/firefox/7182/usr/lib/firefox/firefox"
    assert "MEMORY.DOES_NOT_FIT" not in finding_ids(result)


def test_case_030_missing_numbers_are_not_zero(host, check, case_text):
    host.meminfo(case_text("030", "meminfo.txt"))
    rows = processes_of(case_text("030", "query-compute-apps.csv"), "gpu_uuid,pid,process_name,used_gpu_memory")
    (printed,) = processes_of(case_text("030", "query-gpu.csv"), "memory.used,memory.total,utilization.gpu")
    host.gpus({**GB10, **printed}, processes=rows)
    host.process(114687, "/usr/local/bin/python -m vllm --api-key very-secret", uid=4242)
    result = check()
    assert result["gpus"][0]["memory_model"] == "unified"
    assert result["gpus"][0]["total_gib"] == 121.691
    (holder,) = result["holders"]
    assert (holder["pid"], holder["used_gib"], holder["process"]) == (114687, 18.687, "/usr/local/bin/python")
    assert holder["user"] == "4242"
    assert holder["graphics"] is False
    assert "very-secret" not in json.dumps(result)
    # meminfo of the case lacks the parts from which a gap could be computed.
    assert result["unattributed_gib"] is None
    assert result["fits"] is None


def test_case_032_page_cache_is_not_a_process_to_stop(host, check, case_text):
    host.meminfo(case_text("032", "meminfo.txt"))
    result = check(utilization=0.85)
    assert result["holders"] == []
    assert result["memory"]["free_gib"] == 41.0
    assert result["memory"]["available_gib"] == 109.0
    assert result["memory"]["reclaimable_gib"] == 68.0
    assert result["fits"] is False
    (finding,) = result["findings"]
    assert (finding["id"], finding["severity"]) == ("MEMORY.PAGE_CACHE", "warning")
    assert "drop_caches=true" in finding["remedy"]
    assert "101.74 GiB (utilization 0.85 of 119.70 GiB)" in finding["message"]
    # What could be had after the drop, not the 0.34 that are free now.
    assert result["max_utilization"] == 0.91


def test_case_032_required_memory_may_come_from_the_page_cache(host, check, case_text):
    host.meminfo(case_text("032", "meminfo.txt"))
    assert check(required_gib=100, reserve_gib=9)["fits"] is True
    beyond = check(required_gib=100, reserve_gib=9.5)
    assert beyond["fits"] is False
    assert finding_ids(beyond) == ["MEMORY.DOES_NOT_FIT"]
    assert "109.50 GiB (100 required, 9.5 in reserve)" in beyond["findings"][0]["message"]


@pytest.mark.parametrize(
    "waited, advice, avoided",
    [(0, "Measure again after 60 s", "kill"), (61, "Reboot", "Measure again")],
)
def test_case_034_leak_is_measured_again_before_a_reboot(host, check, case_text, monkeypatch, waited, advice, avoided):
    host.meminfo(case_text("034", "meminfo.txt"))
    clock = iter([0.0, *[float(waited)] * 9])
    monkeypatch.setattr(_memory_check, "monotonic", lambda: next(clock))
    result = check(settle_seconds=waited)
    assert result["holders"] == []
    assert result["unattributed_gib"] == 35.137
    (finding,) = result["findings"]
    assert finding["id"] == "MEMORY.LEAKED"
    assert advice in finding["remedy"]
    assert avoided not in finding["remedy"]


def test_case_035_orphan_is_found_by_its_title_although_its_parent_is_a_shell(host, check, case_text):
    used = 104277 * 1024
    host.meminfo(
        f"MemTotal: 127602216 kB\nMemFree: {118566368 - used} kB\nMemAvailable: {119366368 - used} kB\n"
        "Buffers: 90112 kB\nCached: 1884160 kB\nAnonPages: 2621440 kB\nSlab: 1048576 kB\n"
    )
    host.gpus(processes=processes_of(case_text("035", "query-compute-apps.csv"), "pid,process_name,used_gpu_memory"))
    for line in case_text("035", "ps.txt").splitlines():
        pid, parent, command = line.split()
        host.process(int(pid), command, parent=int(parent), cgroup="0::/user.slice/user-0.slice/session-3.scope")
    result = check(utilization=0.8)
    (holder,) = result["holders"]
    assert (holder["pid"], holder["process"], holder["orphan"]) == (22001, "VLLM::EngineCore", True)
    assert holder["used_gib"] == 101.833
    assert holder["systemd_unit"] == ""
    assert finding_ids(result) == ["MEMORY.DOES_NOT_FIT", "MEMORY.ORPHAN_ENGINE"]
    assert "kill 22001" in result["findings"][1]["remedy"]
    assert "process 22001" in result["findings"][0]["remedy"]
    # The orphan explains the gap: it is no leak.
    assert result["unattributed_gib"] < 4


@pytest.mark.parametrize(
    "parent, cgroup",
    [
        ("/usr/bin/python3 /usr/local/bin/vllm serve /model", "0::/user.slice/user-0.slice/session-3.scope"),
        ("/usr/local/lib/python3.12/site-packages/ray/core/src/ray/raylet/raylet", "0::/user.slice/session-1.scope"),
        ("bash", "0::/system.slice/dgxspark-vllm.service"),
        ("bash", f"0::/system.slice/docker-{'a' * 64}.scope"),
    ],
    ids=["server lives", "raylet lives", "unit stops it", "container stops it"],
)
def test_worker_with_an_owner_is_no_orphan(host, check, parent, cgroup):
    host.gpus(processes=[{"pid": "30", "process_name": "VLLM::Worker_TP0", "used_gpu_memory": "9000 MiB"}])
    host.process(20, parent)
    host.process(30, "VLLM::Worker_TP0", parent=20, cgroup=cgroup)
    result = check()
    assert result["holders"][0]["orphan"] is False
    assert "MEMORY.ORPHAN_ENGINE" not in finding_ids(result)


def test_case_037_memory_without_a_process_is_not_free_and_no_leak(host, check, case_text):
    host.gpus(table=case_text("037", "nvidia-smi.txt"), unknown_fields=["compute_cap"])
    result = check(required_gib=40)
    assert [(gpu["memory_model"], gpu["total_gib"], gpu["free_gib"]) for gpu in result["gpus"]] == [
        ("dedicated", 47.988, 2.22),
        ("dedicated", 47.988, 47.498),
    ]
    assert result["fits"] is False
    assert result["max_utilization"] == 0.04
    assert [(f["id"], f["subject"]) for f in result["findings"]] == [
        ("MEMORY.DOES_NOT_FIT", "GPU 0"),
        ("MEMORY.HOLDER_INVISIBLE", "GPU 0"),
    ]
    assert "100% busy" in result["findings"][1]["message"]
    assert result["unattributed_gib"] == 46.259


def test_case_038_banner_of_an_image_is_not_read_as_numbers(host, check, case_text):
    banner, printed = case_text("038", "docker-run.txt").split("name, memory.total")
    (row,) = processes_of(printed.splitlines()[1], "name,memory.total,driver_version")
    host.gpus({**GB10, **row}, banner=banner)
    (gpu,) = check()["gpus"]
    assert (gpu["name"], gpu["driver"], gpu["memory_model"]) == ("NVIDIA GB10", "580.142", "unified")


def test_case_041_utilization_is_too_high_and_nobody_is_to_blame(host, check, case_text):
    host.meminfo(case_text("041", "meminfo.txt"))
    result = check(utilization=0.85, reserve_gib=1)
    assert result["max_utilization"] == 0.82
    (finding,) = result["findings"]
    assert finding["id"] == "MEMORY.DOES_NOT_FIT"
    assert finding["remedy"] == "No process holds it. Use a utilization of at most 0.82."


def test_case_041_old_vllm_misses_what_the_kernel_could_reclaim(host, check, case_text):
    host.meminfo(case_text("041", "meminfo.txt"))
    result = check(utilization=0.835, reserve_gib=1)
    assert result["fits"] is False
    (finding,) = result["findings"]
    assert finding["id"] == "MEMORY.PAGE_CACHE"
    # 1.2 GiB of page cache is what always remains: dropping it again is no advice.
    assert finding["remedy"] == "Use a utilization of at most 0.82."


def test_desktop_is_not_named_as_what_to_stop(host, check):
    table = "|    0   N/A  N/A            4174      G   /usr/bin/gnome-shell                    4096MiB |"
    host.gpus(table=table, processes=[{"pid": "50", "process_name": "train", "used_gpu_memory": "9000 MiB"}])
    host.process(4174, "/usr/bin/gnome-shell")
    host.process(50, "train", cgroup="0::/system.slice/train.service")
    (finding,) = check(required_gib=200)["findings"]
    assert finding["remedy"] == "Make room: unit train.service (8.8 GiB)."


@pytest.mark.parametrize(
    "cma, found", [("CmaTotal: 0 kB\nCmaFree: 940604 kB\n", True), ("CmaTotal: 131072 kB\nCmaFree: 98304 kB\n", False)]
)
def test_kernel_with_broken_cma_accounting(host, check, cma, found):
    host.meminfo(IDLE_MEMINFO + cma)
    assert ("MEMORY.CMA_ACCOUNTING" in finding_ids(check())) is found


def test_h200_has_memory_of_its_own(host, check):
    process = {"pid": "417", "process_name": "python3", "used_gpu_memory": "20998 MiB", "gpu_uuid": H200["uuid"]}
    host.gpus(H200, processes=[process])
    host.process(417, "python3 train.py", cgroup="0::/system.slice/train.service")
    result = check(utilization=0.9)
    assert result["gpus"][0]["memory_model"] == "dedicated"
    assert result["gpus"][0]["total_gib"] == 140.401
    assert result["fits"] is False
    assert result["max_utilization"] == 0.84
    assert result["holders"][0]["systemd_unit"] == "train.service"
    # 9 MiB that no process explains are the driver's.
    assert finding_ids(result) == ["MEMORY.DOES_NOT_FIT"]
    assert "unit train.service (20.5 GiB)" in result["findings"][0]["remedy"]


def test_h200_table_of_a_real_driver(host, check):
    captured = (Path(__file__).parents[2] / "fixtures/h200/nvidia_smi.txt").read_text()
    host.gpus(table=captured, unknown_fields=["compute_cap"])
    host.process(417, "python3 hold.py")
    result = check()
    (gpu,) = result["gpus"]
    assert (gpu["name"], gpu["memory_model"], gpu["driver"]) == ("NVIDIA H200", "dedicated", "580.159.04")
    assert (gpu["total_gib"], gpu["used_gib"], gpu["busy_percent"]) == (140.401, 20.515, 0)
    assert [(holder["pid"], holder["used_gib"], holder["graphics"]) for holder in result["holders"]] == [
        (417, 20.506, False)
    ]
    assert result["unattributed_gib"] == 0.009


def test_process_on_two_gpus_is_one_holder(host, check):
    second = {**H200, "index": "1", "uuid": "GPU-1"}
    rows = [
        {"pid": "417", "process_name": "python3", "used_gpu_memory": "10240 MiB", "gpu_uuid": uuid}
        for uuid in (H200["uuid"], "GPU-1")
    ]
    host.gpus(H200, second, processes=rows, table="|    1   N/A  N/A   417   C+G   python3    10240MiB |")
    host.process(417, "python3")
    (holder,) = check()["holders"]
    assert (holder["used_gib"], holder["gpus"], holder["graphics"]) == (20.0, [0, 1], True)


def test_gap_seen_from_a_container_is_no_leak(host, check, case_text):
    host.meminfo(case_text("034", "meminfo.txt"))
    host.in_pid_namespace(4026532198)
    assert finding_ids(check()) == ["MEMORY.HOLDER_INVISIBLE"]


def test_process_that_this_host_does_not_show(host, check):
    host.gpus(processes=[{"pid": "999", "process_name": "python3", "used_gpu_memory": "9000 MiB"}])
    result = check()
    assert result["holders"][0]["visible"] is False
    assert finding_ids(result) == ["MEMORY.HOLDER_INVISIBLE"]


def test_container_is_reported_by_id_when_the_engine_cannot_be_asked(host, check):
    identity = "b" * 64
    host.gpus(processes=[{"pid": "50", "process_name": "python3", "used_gpu_memory": "9000 MiB"}])
    host.process(50, "python3", cgroup=f"12:memory:/docker/{identity}\n0::/")
    result = check()
    assert result["holders"][0]["container_id"] == identity
    assert result["holders"][0]["container"] == ""
    (finding,) = result["findings"]
    assert (finding["id"], finding["severity"]) == ("MEMORY.CONTAINER_NAMES_UNKNOWN", "info")
    assert "no-engine.sock" in finding["message"]


class FakeEngine:
    def __init__(self, containers: dict[str, dict[str, Any]]) -> None:
        self.containers = containers

    def inspect_container(self, identity: str) -> dict[str, Any]:
        try:
            return self.containers[identity]
        except KeyError:
            raise docker.errors.NotFound("no such container") from None


def test_container_has_name_labels_and_the_unit_that_runs_it(host, check, monkeypatch):
    glm, unknown = "c" * 64, "d" * 64
    engine = FakeEngine(
        {
            glm: {
                "Id": glm,
                "Name": "/glm",
                "Config": {"Image": "vllm-node:0.17", "Labels": {"io.dgxspark.serving.managed": "true"}},
            }
        }
    )
    monkeypatch.setattr(_memory_check.host_python, "connect_engine", lambda docker_host: engine)
    host.gpus(
        processes=[
            {"pid": "50", "process_name": "python3", "used_gpu_memory": "90000 MiB"},
            {"pid": "60", "process_name": "python3", "used_gpu_memory": "1000 MiB"},
        ]
    )
    host.process(
        40, "/usr/bin/docker run --rm --name glm vllm-node:0.17", cgroup="0::/system.slice/vllm-cluster.service"
    )
    host.process(41, "/usr/bin/docker logs -f glm", cgroup="0::/system.slice/log-shipper.service")
    host.process(50, "python3", cgroup=f"0::/system.slice/docker-{glm}.scope")
    host.process(60, "python3", cgroup=f"0::/system.slice/docker-{unknown}.scope")
    first, second = check()["holders"]
    assert (first["container"], first["image"], first["systemd_unit"]) == (
        "glm",
        "vllm-node:0.17",
        "vllm-cluster.service",
    )
    assert first["labels"] == {"io.dgxspark.serving.managed": "true"}
    assert (second["container"], second["container_id"]) == ("", unknown)


def test_host_that_is_a_container_does_not_own_its_processes(host, check):
    outer, inner = "e" * 64, "f" * 64
    (host.proc / "1/cgroup").write_text(f"3:memory:/docker/{outer}/init.scope\n")
    host.gpus(
        processes=[
            {"pid": "50", "process_name": "python3", "used_gpu_memory": "2000 MiB"},
            {"pid": "60", "process_name": "python3", "used_gpu_memory": "1000 MiB"},
        ]
    )
    host.process(50, "python3", cgroup=f"3:memory:/docker/{outer}/system.slice/train.service")
    host.process(60, "python3", cgroup=f"3:memory:/docker/{outer}/docker/{inner}")
    first, second = check()["holders"]
    assert (first["container_id"], first["systemd_unit"]) == ("", "train.service")
    assert second["container_id"] == inner


@pytest.mark.parametrize("check_mode, written", [(False, "3\n"), (True, None)])
def test_drop_caches(host, check, check_mode, written):
    path = host.proc / "sys/vm/drop_caches"
    result = check(check_mode=check_mode, drop_caches=True)
    assert result["changed"] is True
    assert (path.read_text() if path.exists() else None) == written


def test_looking_changes_nothing(check):
    assert check()["changed"] is False


def test_drop_caches_without_rights_names_the_remedy(host, check):
    (host.proc / "sys/vm/drop_caches").mkdir()
    result = check(drop_caches=True)
    assert result["failed"] is True
    assert "Use become" in result["msg"]


def test_settling_ends_as_soon_as_it_fits(host, check, monkeypatch):
    held = "MemTotal: 127602216 kB\nMemFree: 20000000 kB\nMemAvailable: 21000000 kB\n"
    looks = []

    def release(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            host.meminfo(IDLE_MEMINFO)

    host.meminfo(held)
    monkeypatch.setattr(_memory_check, "sleep", release)
    result = check(required_gib=100, settle_seconds=60)
    assert result["fits"] is True
    assert len(looks) == 3


def test_settling_ends_when_nothing_moves(check, monkeypatch):
    looks: list[float] = []
    monkeypatch.setattr(_memory_check, "sleep", looks.append)
    check(settle_seconds=60)
    assert len(looks) == _memory_check.SETTLED_LOOKS - 1


def test_settling_has_an_end(host, check):
    host.meminfo("MemTotal: 127602216 kB\nMemFree: 20000000 kB\nMemAvailable: 21000000 kB\n")
    began = time.monotonic()
    result = check(required_gib=100, settle_seconds=1.2)
    assert result["fits"] is False
    assert time.monotonic() - began < 10


def test_hanging_nvidia_smi_is_a_finding(host, check):
    host.gpus(delay=60)
    began = time.monotonic()
    result = check(timeout=0.5)
    assert time.monotonic() - began < 10
    assert finding_ids(result) == ["MEMORY.NVIDIA_SMI_HANGS"]
    assert result["fits"] is None
    assert result["memory"]["total_gib"] == 121.691


def test_missing_nvidia_smi_is_a_finding(check):
    assert finding_ids(check(nvidia_smi="/nowhere/nvidia-smi")) == ["MEMORY.NVIDIA_SMI_MISSING"]


def test_missing_driver_is_a_finding_with_the_words_of_the_tool(host, check):
    complaint = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    host.gpus(complaint=complaint)
    (finding,) = check()["findings"]
    assert finding["id"] == "MEMORY.DRIVER_UNAVAILABLE"
    assert complaint in finding["message"]


def test_lost_gpu_is_unreadable_and_not_full(host, check):
    host.gpus({**H200, "memory.total": "[GPU is lost]", "memory.used": "[GPU is lost]", "memory.free": "[GPU is lost]"})
    result = check(required_gib=1)
    assert finding_ids(result) == ["MEMORY.GPU_UNREADABLE"]
    assert result["fits"] is None


def test_fail_on_fails_with_everything_that_was_measured(host, check, case_text):
    host.meminfo(case_text("032", "meminfo.txt"))
    result = check(utilization=0.85, fail_on=["error", "warning"])
    assert result["failed"] is True
    assert "MEMORY.PAGE_CACHE" in result["msg"]
    assert result["memory"]["free_gib"] == 41.0
    assert "failed" not in check(utilization=0.85, fail_on=["error"])


@pytest.mark.parametrize("utilization", [0, 1.2, -0.5])
def test_utilization_is_a_share(check, utilization):
    result = check(utilization=utilization)
    assert result["failed"] is True
    assert "share of the memory" in result["msg"]


def test_meminfo_that_cannot_be_read_is_a_failure(host, check):
    host.meminfo("nothing of the kind\n")
    result = check()
    assert result["failed"] is True
    assert "MemTotal" in result["msg"]
