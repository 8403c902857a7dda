"""What was named is stopped and stays stopped, what is kept was not touched, the memory is back, the way back is written."""

from __future__ import annotations

import json
from typing import Any

testinfra_hosts = ["docker://spark-head", "docker://spark-worker"]


def is_head(host: Any) -> bool:
    return bool(host.run("hostname").stdout.strip() == "spark-head")


def running(host: Any) -> set[str]:
    return set(host.run("docker ps --format '{{.Names}}'").stdout.split())


def test_what_was_named_is_stopped(host: Any) -> None:
    assert running(host) & {"glm", "reranker"} == set(), host.run("docker ps -a").stdout
    if is_head(host):
        for unit in ("vllm-cluster", "vllm-proxy"):
            state = host.run(f"systemctl is-active {unit}").stdout.strip()
            assert state in ("inactive", "failed"), host.run(f"journalctl -n 20 -u {unit}").stdout


def test_it_would_stay_stopped_after_a_reboot(host: Any) -> None:
    policy = host.run("docker inspect -f '{{.HostConfig.RestartPolicy.Name}}' reranker").stdout.strip()
    assert policy == "no"
    if is_head(host):
        assert host.run("systemctl is-enabled vllm-cluster").stdout.strip() == "disabled"


def test_what_is_kept_runs(host: Any) -> None:
    if not is_head(host):
        assert "embeddings" in running(host)
        assert "embeddings" in host.run("curl -s http://127.0.0.1:8101/").stdout


def test_the_memory_is_back(host: Any) -> None:
    meminfo = host.run("cat /proc/meminfo").stdout
    available = next(int(line.split()[1]) for line in meminfo.splitlines() if line.startswith("MemAvailable"))
    assert available / 1024**2 > 100, host.run(
        "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv"
    ).stdout


def test_the_restore_point_says_what_ran(host: Any) -> None:
    newest = host.run("ls -t /var/lib/dgxspark/restore | grep -v original | head -n 1").stdout.strip()
    point = json.loads(host.run(f"cat /var/lib/dgxspark/restore/{newest}").stdout)
    containers = {item["name"]: item["restart_policy"] for item in point["containers"]}
    assert containers == {"reranker": "unless-stopped"}
    expected = ["vllm-cluster.service", "vllm-proxy.service"] if is_head(host) else []
    assert [unit["name"] for unit in point["units"]] == expected
