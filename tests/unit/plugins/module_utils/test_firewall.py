# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools
import shlex
import shutil
import subprocess
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import (
    closed_ports,
    is_within,
    let_in_arguments,
    ruleset,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._host_firewall import parse_nftables

PORTS = {
    "ray": 6379,
    "ray_workers": [20000, 20099],
    "ray_node_manager": 20100,
    "ray_agents": [20103, 20104],
    "staging": {"image": 20110, "weights": 20111},
}


def plan(api_port: int = 8000, hosts: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "firewall": True,
        "open_ports": [],
        "ports": PORTS,
        "api": {"port": api_port},
        "hosts": [
            {
                "name": f"spark-{number}",
                "fabric_addresses": [f"192.168.100.1{number}", f"192.168.101.1{number}"] if hosts > 1 else [],
            }
            for number in range(1, hosts + 1)
        ],
        **more,
    }


def closed(port: int, **more: Any) -> bool:
    return is_within(port, closed_ports(plan(**more)))


def test_ports_of_the_deployment_are_closed_and_others_are_not():
    for port in (6379, 20000, 20050, 20100, 20104, 20111, 10001, 29500, 32768, 44477, 52365, 60999):
        assert closed(port), port
    # SSH, the API, a service of the user, and a port between the ranges.
    for port in (22, 8000, 8102, 5432, 20105, 61000):
        assert not closed(port), port


def test_the_api_stays_open_wherever_it_is():
    for port in (20050, 40000, 6379, 32768, 60999):
        assert not closed(port, api_port=port)
    assert closed(40001, api_port=40000) and closed(39999, api_port=40000)


def test_ports_that_the_user_names_and_those_of_ssh_stay_open():
    named = [40022, 25000]
    assert not any(closed(port, open_ports=named) for port in named)
    assert closed(40021, open_ports=named) and closed(40023, open_ports=named)


def test_without_a_firewall_nothing_is_within():
    assert closed_ports(plan(firewall=False)) == [] and ruleset(plan(firewall=False)) == ""


def test_ranges_do_not_overlap():
    ranges = closed_ports(plan(ports={"a": [20000, 20010], "b": 20005, "c": [20011, 20012]}))
    assert (20000, 20012) in ranges
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))


def test_fabric_addresses_of_all_hosts_may_pass():
    text = ruleset(plan())
    assert "elements = { 192.168.100.11, 192.168.100.12, 192.168.101.11, 192.168.101.12 }" in text
    assert "iif lo accept" in text and "policy accept" in text
    assert [line for line in text.splitlines() if "table" in line and not line.startswith("#")] == [
        "table inet dgxspark",
        "delete table inet dgxspark",
        "table inet dgxspark {",
    ]


def test_what_is_no_address_is_refused():
    with pytest.raises(ValueError):
        ruleset({**plan(), "hosts": [{"fabric_addresses": ["192.168.100.11; drop"]}]})


def in_own_network(*commands: str) -> subprocess.CompletedProcess[str]:
    """In a network namespace of its own: the machine's tables are not touched. Skips where that is not possible."""
    if not all(shutil.which(name) for name in ("nft", "unshare", "nsenter", "ip")):
        pytest.skip("needs nft, ip, unshare and nsenter")
    argv = ["unshare", "--map-root-user", "--net", "sh", "-ec", "\n".join(commands)]
    if subprocess.run([*argv[:-1], "nft list ruleset"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace with nftables here")
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("hosts", [1, 2])
def test_hosts_that_join_are_let_in(tmp_path, hosts):
    rules = tmp_path / "firewall.nft"
    rules.write_text(ruleset(plan(hosts=hosts)), encoding="utf-8")
    known = [address for host in plan(hosts=hosts)["hosts"] for address in host["fabric_addresses"]]
    arguments = let_in_arguments(plan(hosts=4), known)
    done = in_own_network(f"nft -f {rules}", f"nft {shlex.join(arguments)}", "nft list set inet dgxspark fabric")
    assert done.returncode == 0, done.stderr
    assert all(address in done.stdout for host in plan(hosts=4)["hosts"] for address in host["fabric_addresses"])


@pytest.mark.parametrize(("lets_in", "reason"), [(None, "no table"), (True, "all are known")])
def test_nothing_is_told_to_a_firewall_that_needs_nothing(lets_in, reason):
    known = [address for host in plan(hosts=2)["hosts"] for address in host["fabric_addresses"]]
    assert let_in_arguments(plan(hosts=2), known if lets_in else None) == [], reason


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_nft_accepts_the_rules_again_and_again(tmp_path, hosts):
    rules = tmp_path / "firewall.nft"
    rules.write_text(ruleset(plan(hosts=hosts)), encoding="utf-8")
    done = in_own_network(
        f"nft -c -f {rules}", f"nft -f {rules}", f"nft -f {rules}", "nft list ruleset", "nft delete table inet dgxspark"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("chain input") == 1 and "tcp dport @closed drop" in done.stdout


_SERVER = """\
import socket, time
servers = [socket.create_server(("0.0.0.0", port)) for port in (22, 6379, 8000, 8102, 44444)]
time.sleep(60)
"""
_CLIENT = """\
import socket, sys
found = []
for port in (22, 6379, 8000, 8102, 44444):
    client = socket.socket()
    client.settimeout(0.3)
    if client.connect_ex((sys.argv[1], port)) == 0:
        found.append(port)
print(sys.argv[1], found)
"""
_TWO_HOSTS = """\
nft -f {folder}/firewall.nft
unshare --net sleep 60 & peer=$!
sleep 0.3
trap 'kill $peer $server' EXIT
ip link set lo up
for wire in "fabric 192.168.100.11 192.168.100.12" "office 10.9.0.11 10.9.0.12"; do
    set -- $wire
    ip link add $1 type veth peer name $1p
    ip link set $1p netns $peer
    ip addr add $2/24 dev $1
    ip link set $1 up
    nsenter --target $peer --net ip addr add $3/24 dev $1p
    nsenter --target $peer --net ip link set $1p up
done
python3 {folder}/server.py & server=$!
sleep 0.5
nsenter --target $peer --net python3 {folder}/client.py 192.168.100.11
nsenter --target $peer --net python3 {folder}/client.py 10.9.0.11
python3 {folder}/client.py 10.9.0.11
python3 {folder}/client.py 127.0.0.1
"""


def test_what_really_passes(tmp_path):
    for name, text in (("firewall.nft", ruleset(plan())), ("server.py", _SERVER), ("client.py", _CLIENT)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = in_own_network(_TWO_HOSTS.format(folder=tmp_path))
    assert done.returncode == 0, done.stderr
    every = [22, 6379, 8000, 8102, 44444]
    assert done.stdout.splitlines() == [
        f"192.168.100.11 {every}",
        "10.9.0.11 [22, 8000, 8102]",
        f"10.9.0.11 {every}",
        f"127.0.0.1 {every}",
    ]


def test_preflight_does_not_take_our_table_for_an_obstacle():
    foreign = "table inet filter {\n  chain input {\n    type filter hook input priority filter;\n    tcp dport 1-65535 drop\n  }\n}\n"
    assert parse_nftables(ruleset(plan())) == []
    assert parse_nftables(ruleset(plan()) + foreign) == ["inet filter input: tcp dport 1-65535 drop"]
