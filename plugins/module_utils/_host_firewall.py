# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packet filters of a host: what could keep the other hosts' packets out.

PRIVATE to this collection. Whether they really do is tried with connections (_port_probe); this tells the reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._firewall import FABRIC_SET, RULES_FILE, TABLE
from ansible_collections.dgxspark.serving.plugins.module_utils._host_kernel import read_text
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandRunner

UFW_SETTINGS = "/etc/ufw/ufw.conf"
# As many lines as a person would read.
_SHOWN_RULES = 6
_REFUSES = re.compile(r"\b(?:drop|reject)\b", re.IGNORECASE)
# Docker isolates its bridges with these chains; host-network containers, which Ray and the engine are, do not pass them.
_OF_DOCKER = re.compile(r"DOCKER|br-[0-9a-f]{12}|docker0")


def ufw_enabled(text: str) -> bool:
    """The text of C(/etc/ufw/ufw.conf), which every user may read."""
    return bool(re.search(r"^\s*ENABLED\s*=\s*yes\s*$", text, re.MULTILINE | re.IGNORECASE))


def parse_iptables(text: str) -> dict[str, Any]:
    """Policies of INPUT and FORWARD and the rules that refuse packets, from C(iptables -S)."""
    policies = dict(re.findall(r"^-P (INPUT|FORWARD) (\S+)", text, re.MULTILINE))
    rules = [
        line
        for line in text.splitlines()
        if line.startswith("-A ")
        and _REFUSES.search(line)
        and not line.startswith("-A FORWARD")
        and not _OF_DOCKER.search(line)
    ]
    return {"input": policies.get("INPUT", ""), "forward": policies.get("FORWARD", ""), "rules": rules[:_SHOWN_RULES]}


def parse_nftables(text: str) -> list[str]:
    """C(table chain: rule) of the chains at hook input that refuse packets, from C(nft list ruleset). Our own table is not one of them."""
    found = []
    table, chain, at_input = "", "", False
    for line in (raw.strip() for raw in text.splitlines()):
        if heading := re.match(r"table (\S+ \S+)", line):
            table = heading[1]
        elif heading := re.match(r"chain (\S+)", line):
            chain, at_input = heading[1], False
        elif re.search(r"hook (?:input|ingress|prerouting)", line):
            at_input = True
            if "policy drop" in line:
                found.append(f"{table} {chain}: policy drop")
        elif at_input and table != TABLE and _REFUSES.search(line):
            found.append(f"{table} {chain}: {line}")
    return found[:_SHOWN_RULES]


def addresses_let_in(run: CommandRunner, rules_file: str = RULES_FILE) -> list[str] | None:
    """Addresses of the fabric that our own table lets in, of a deployment that is on this host. None where it does not stand, or may not
    be seen.
    """
    if not os.path.exists(rules_file):
        return None
    listed = run(["nft", "list", "set", *TABLE.split(), FABRIC_SET])
    return None if listed.returncode else re.findall(r"\d+\.\d+\.\d+\.\d+", listed.stdout)


def read_firewalls(run: CommandRunner, ufw_settings: str = UFW_SETTINGS) -> dict[str, Any]:
    """C(readable) is false for a user who may not see the rules; C(blocking): what refuses packets, a line each."""
    facts: dict[str, Any] = {"ufw": ufw_enabled(read_text(ufw_settings)), "readable": not os.geteuid(), "forward": ""}
    blocking: list[str] = ["ufw is active"] if facts["ufw"] else []
    if facts["readable"]:
        iptables = run(["iptables", "-S"])
        if not iptables.returncode:
            parsed = parse_iptables(iptables.stdout)
            facts["forward"] = parsed["forward"]
            blocking += ["iptables: INPUT policy DROP"] if parsed["input"] == "DROP" else []
            blocking += [f"iptables: {rule}" for rule in parsed["rules"]]
        nftables = run(["nft", "list", "ruleset"])
        if not nftables.returncode:
            blocking += [
                f"nftables: {rule}" for rule in parse_nftables(nftables.stdout) if not _doubled(rule, blocking)
            ]
    return {**facts, "blocking": blocking}


def _doubled(rule: str, blocking: Sequence[str]) -> bool:
    """Newer iptables keep their rules in nftables' table C(ip filter)."""
    return rule.startswith("ip filter") and any(line.startswith("iptables: ") for line in blocking)
