"""What was named is stopped and stays stopped, what is kept was not touched, the memory is back, the way back is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

testinfra_hosts = ["docker://spark-head", "docker://spark-worker"]

ZOO_CONTAINERS = {"zoo-no", "zoo-always", "zoo-unless", "zoo-retry", "zoo-paused", "zoo-stack-db-1", "zoo-stack-api-1"}
ZOO_UNITS = ("zoo-wrapper.service", "zoo-ping.service", "zoo-pong.service", "zoo-woken.socket", "zoo-woken.service")


def is_head(host: Any) -> bool:
    return bool(host.run("hostname").stdout.strip() == "spark-head")


def running(host: Any) -> set[str]:
    return set(host.run("docker ps --format '{{.Names}}'").stdout.split())


def holders(host: Any) -> str:
    return str(host.run("nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv").stdout)


def restore_point(host: Any) -> dict[str, Any]:
    newest = host.run("ls -t /var/lib/dgxspark/restore | grep -v original | head -n 1").stdout.strip()
    point: dict[str, Any] = json.loads(host.run(f"cat /var/lib/dgxspark/restore/{newest}").stdout)
    return point


def test_what_was_named_is_stopped(host: Any) -> None:
    assert running(host) & {"glm", "reranker", "zoo-wrapped", "zoo-temporary", *ZOO_CONTAINERS} == set(), host.run(
        "docker ps -a"
    ).stdout
    for unit in ("vllm-cluster", "vllm-proxy") if is_head(host) else ZOO_UNITS:
        state = host.run(f"systemctl is-active {unit}").stdout.strip()
        assert state in ("inactive", "failed"), host.run(f"journalctl -n 20 -u {unit}").stdout


def test_nothing_that_was_named_counts_as_failed(host: Any) -> None:
    # docker run ends with 143 when its container is stopped.
    assert host.run("systemctl --failed --no-legend --plain").stdout.strip() == ""


def test_it_would_stay_stopped_after_a_reboot(host: Any) -> None:
    names = "reranker" if is_head(host) else " ".join(["reranker", "zoo-wrapped", *ZOO_CONTAINERS])
    policies = host.run(f"docker inspect -f '{{{{.HostConfig.RestartPolicy.Name}}}}' {names}").stdout.split()
    assert set(policies) == {"no"}
    units = ("vllm-cluster",) if is_head(host) else ("zoo-wrapper", "zoo-ping", "zoo-pong", "zoo-woken.socket")
    for unit in units:
        assert host.run(f"systemctl is-enabled {unit}").stdout.strip() == "disabled", unit


def test_the_orphan_is_gone(host: Any) -> None:
    assert host.run("pgrep -f ^VLLM::EngineCore").stdout.strip() == ""


@pytest.mark.parametrize(("name", "port"), [("embeddings", 8101), ("zoo-kept", 8207)])
def test_what_is_kept_runs(host: Any, name: str, port: int) -> None:
    if is_head(host):
        pytest.skip("the head keeps nothing")
    assert name in running(host)
    assert name in host.run(f"curl -s http://127.0.0.1:{port}/").stdout
    assert host.run(f"docker inspect -f '{{{{.RestartCount}}}}' {name}").stdout.strip() == "0"


def test_only_what_is_kept_holds_memory(host: Any) -> None:
    expected = 0 if is_head(host) else 2
    assert len(holders(host).splitlines()) - 1 == expected, holders(host)
    meminfo = host.run("cat /proc/meminfo").stdout
    available = next(int(line.split()[1]) for line in meminfo.splitlines() if line.startswith("MemAvailable"))
    assert available / 1024**2 > 100, holders(host)


def test_the_restore_point_says_what_ran(host: Any) -> None:
    point = restore_point(host)
    containers = {item["name"]: (item["state"], item["restart_policy"]) for item in point["containers"]}
    units = [unit["name"] for unit in point["units"]]
    if is_head(host):
        assert containers == {"reranker": ("running", "unless-stopped")}
        assert units == ["vllm-cluster.service", "vllm-proxy.service"]
        assert [unit["ports"] for unit in point["units"]] == [[8000], [8080]]
        return
    assert set(containers) == {"reranker", "zoo-wrapped", *ZOO_CONTAINERS}
    assert containers["zoo-retry"] == ("running", "on-failure:3")
    assert containers["zoo-paused"] == ("paused", "always")
    assert set(units) == set(ZOO_UNITS)
    assert [name.split()[0] for name in point["ended"]] == ["container", "process"]


def test_the_host_is_free_again(host: Any) -> None:
    assert host.run("ls /var/lib/dgxspark/restore/.lease").rc != 0
    assert host.run("systemctl is-enabled dgxspark-restore.timer").rc != 0
