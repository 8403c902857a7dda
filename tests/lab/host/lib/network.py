"""Give the interfaces of this host the names they have on a Spark. Docker calls them eth0, eth1, ... in some order.

And take its name server away: the one of Docker waits for the outer machine's, which cannot be reached from here, and each
login looks up where it comes from (half a minute). Nobody listens on 127.0.0.1, so a look-up fails at once.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

HOST_FILE = Path("/etc/lab/host.json")
NET = Path("/sys/class/net")
RESOLVER = Path("/etc/resolv.conf")


def ip(*words: str, check: bool = True) -> str:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True).stdout


def rename(old: str, new: str) -> None:
    if old != new:
        ip("link", "set", old, "down")
        ip("link", "set", old, "name", new)
        ip("link", "set", new, "up")


def main() -> None:
    host = json.loads(HOST_FILE.read_text())
    interfaces = {
        address["local"]: link["ifname"] for link in json.loads(ip("-j", "-4", "addr")) for address in link["addr_info"]
    }
    for wanted in host["interfaces"]:
        rename(interfaces[wanted["address"]], wanted["name"])
        ip("link", "set", wanted["name"], "mtu", str(wanted["mtu"]))
    # The second QSFP port has no cable. Not every kernel has dummy devices; a bridge without ports is down, too.
    for name in host["rdma_devices"].values():
        if not (NET / name).exists():
            ip("link", "add", name, "type", "dummy", check=False)
        if not (NET / name).exists():
            ip("link", "add", name, "type", "bridge")
    RESOLVER.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")  # Docker mounts it: no replacing


if __name__ == "__main__":
    main()
