"""Real connections between two ends on the loopback network, one of them with a fault."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _port_probe
from ansible_collections.dgxspark.serving.plugins.module_utils._fabric_pairs import compare_probes
from ansible_collections.dgxspark.serving.plugins.module_utils._host_pairs import compare_clocks
from ansible_collections.dgxspark.serving.plugins.module_utils._port_probe import Probe, run_probe

HEAD, WORKER = "127.0.0.2", "127.0.0.3"
SECONDS = 1.5


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HEAD, 0)) for _number in range(count)]
    try:
        return sorted(server.getsockname()[1] for server in sockets)
    finally:
        for server in sockets:
            server.close()


def both(head: Probe, worker: Probe, delay: float = 0.0) -> dict[str, dict[str, Any]]:
    """Both ends at the same time, as Ansible runs a task on two hosts; the worker begins later."""
    results: dict[str, dict[str, Any]] = {}

    def run(name: str, probe: Probe, wait: float) -> None:
        time.sleep(wait)
        results[name] = run_probe(probe)

    threads = [
        threading.Thread(target=run, args=("head", head, 0.0)),
        threading.Thread(target=run, args=("worker", worker, delay)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def outcomes(result: dict[str, Any]) -> dict[int, str]:
    return {row["port"]: row["outcome"] for row in result["connections"]}


def test_open_ways_are_open_and_both_ends_end_early() -> None:
    ports = free_ports(3)
    began = time.monotonic()
    found = both(Probe(HEAD, ports, {WORKER: ports}), Probe(WORKER, ports, {HEAD: ports}), delay=0.5)
    assert time.monotonic() - began < _port_probe.PROBE_SECONDS - 1
    assert set(outcomes(found["head"]).values()) == set(outcomes(found["worker"]).values()) == {"open"}
    assert found["head"]["heard_from"] == [WORKER]
    assert abs(found["head"]["clock_offsets"][WORKER]) < 0.5
    assert compare_probes(found, {}) == []
    assert compare_clocks(found) == []


def test_no_connection_waits_on_a_port_afterwards() -> None:
    ports = free_ports(1)
    both(Probe(HEAD, ports, {WORKER: ports}), Probe(WORKER, ports, {HEAD: ports}))
    # Without SO_REUSEADDR this fails where a connection is left over on the server's side.
    with socket.socket() as server:
        server.bind((HEAD, ports[0]))


def test_port_of_a_service_that_runs_already_counts_as_open() -> None:
    ports = free_ports(2)
    with socket.create_server((HEAD, ports[0])):
        found = both(
            Probe(HEAD, ports, {WORKER: ports}, SECONDS),
            Probe(WORKER, ports, {HEAD: ports}, SECONDS),
        )
    assert outcomes(found["worker"])[ports[0]] == "open"
    assert found["head"]["answering"] == [ports[1]]
    assert compare_probes(found, {}) == []


def swallow(monkeypatch: pytest.MonkeyPatch, address: str, port: int, error: type[OSError]) -> None:
    """What a packet filter at C(address) does: DROP lets a connection time out, REJECT refuses it."""
    connect: Callable[..., socket.socket] = socket.create_connection

    def filtered(target: tuple[str, int], *arguments: Any) -> socket.socket:
        if target == (address, port):
            raise error
        return connect(target, *arguments)

    monkeypatch.setattr(socket, "create_connection", filtered)


@pytest.mark.parametrize("error", [TimeoutError, ConnectionRefusedError])
def test_blocked_port_is_found_with_the_rule_that_does_it(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    ports = free_ports(2)
    swallow(monkeypatch, HEAD, ports[0], error)
    found = both(Probe(HEAD, ports, {WORKER: ports}, SECONDS), Probe(WORKER, ports, {HEAD: ports}, SECONDS))
    (finding,) = compare_probes(found, {"head": {"blocking": ["iptables: -A INPUT -p tcp -j DROP"]}})
    assert (finding.id, finding.severity, finding.subject) == ("FABRIC.PORT_BLOCKED", "error", "head")
    assert f"from worker to TCP port {ports[0]} of head" in finding.message
    assert "-A INPUT -p tcp -j DROP" in finding.message


@pytest.mark.parametrize(
    ("lets_in", "found_id"), [([HEAD], "FABRIC.OWN_FIREWALL"), ([HEAD, WORKER], "FABRIC.PORT_BLOCKED")]
)
def test_a_host_that_joins_is_unknown_to_our_own_firewall(
    monkeypatch: pytest.MonkeyPatch, lets_in: list[str], found_id: str
) -> None:
    """One that it lets in is blocked by something else."""
    ports = free_ports(2)
    swallow(monkeypatch, HEAD, ports[0], TimeoutError)
    found = both(Probe(HEAD, ports, {WORKER: ports}, SECONDS), Probe(WORKER, ports, {HEAD: ports}, SECONDS))
    (finding,) = compare_probes(found, {"head": {"blocking": []}}, {"head": lets_in})
    assert finding.id == found_id


def test_host_that_never_met_the_other_proves_nothing() -> None:
    ports = free_ports(1)
    lonely = run_probe(Probe(HEAD, ports, {WORKER: ports}, 0.3))
    later = run_probe(Probe(WORKER, ports, {HEAD: ports}, 0.3))
    assert {finding.id for finding in compare_probes({"head": lonely, "worker": later}, {})} == {"FABRIC.PORT_UNPROVEN"}


def test_host_without_its_address_is_not_blamed() -> None:
    ports = free_ports(1)
    gone = run_probe(Probe("192.0.2.1", ports, {HEAD: ports}, 0.3))
    assert gone["answering"] == []
    assert compare_probes({"head": run_probe(Probe(HEAD, ports, {}, 0.3)), "worker": gone}, {}) == []


@pytest.mark.parametrize(("offset", "severity"), [(0.9, None), (2.5, "warning"), (-400.0, "error")])
def test_clocks(offset: float, severity: str | None) -> None:
    probes = {
        "head": {"address": HEAD, "clock_offsets": {WORKER: offset}},
        "worker": {"address": WORKER, "clock_offsets": {HEAD: -offset}},
    }
    findings = compare_clocks(probes)
    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    if findings:
        assert f"{'worker' if offset > 0 else 'head'} is ahead" in findings[0].message
