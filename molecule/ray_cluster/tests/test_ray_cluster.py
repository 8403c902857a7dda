"""Ray runs under systemd on every host, with exactly the planned nodes, and ends with its unit."""

from __future__ import annotations

import re
import time
from typing import Any

import testinfra

testinfra_hosts = ["docker://spark-head", "docker://spark-worker"]


def test_the_unit_runs_and_comes_back_at_boot(host: Any) -> None:
    service = host.service("dgxspark-ray")
    assert service.is_running, host.run("journalctl -n 40 -u dgxspark-ray").stdout
    assert service.is_enabled


def test_two_nodes_with_a_gpu_each() -> None:
    head = testinfra.get_host("docker://spark-head")
    status = head.run("docker exec dgxspark-ray ray status").stdout
    assert len(re.findall(r"^ 1 node_", status, re.MULTILINE)) == 2, status
    assert "/2.0 GPU" in status


def test_each_host_has_its_own_address_and_interface(host: Any) -> None:
    address = "192.168.240.12" if host.run("hostname").stdout.strip() == "spark-head" else "192.168.240.13"
    environment = host.run("docker exec dgxspark-ray env").stdout
    assert f"VLLM_HOST_IP={address}\n" in environment
    assert "GLOO_SOCKET_IFNAME=enp1s0f0np0\n" in environment
    assert "RAY_AUTH_MODE=token\n" in environment


def test_the_token_is_readable_by_root_only(host: Any) -> None:
    token = host.file("/etc/dgxspark/ray-token")
    assert (token.mode, token.user) == (0o400, "root")


def test_nothing_of_ray_is_left_when_the_unit_stops(host: Any) -> None:
    if host.run("hostname").stdout.strip() == "spark-head":
        return
    assert host.run("systemctl stop dgxspark-ray").rc == 0
    time.sleep(1)
    left = host.run("pgrep -af 'raylet|gcs_server'").stdout
    assert host.run("systemctl start dgxspark-ray").rc == 0
    assert left == ""
