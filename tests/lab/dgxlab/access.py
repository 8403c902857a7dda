"""How a checkout reaches the lab: its own key, the hosts' public keys, an ssh_config, an inventory of further hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .cluster import public_host_key
from .settings import CHECKOUT, LAB, MANAGEMENT, RAILS, STATE, USER, Host
from .shell import inside, run

KEY = STATE / "id_ed25519"
KNOWN_HOSTS = STATE / "known_hosts"
CONFIG = STATE / "ssh_config"
MORE_HOSTS = STATE / "more_hosts.yml"


def write(hosts: Sequence[Host]) -> None:
    STATE.mkdir(mode=0o700, exist_ok=True)
    STATE.chmod(0o700)
    if not KEY.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "dgxspark-lab", "-f", KEY])
    public_key = KEY.with_suffix(".pub").read_text()
    lines = []
    for host in hosts:
        inside(host.container, "lab-authorize", stdin=public_key)
        lines.append(f"{host.inventory_name} {public_host_key(host)}\n")
    KNOWN_HOSTS.write_text("".join(lines))
    CONFIG.write_text(ssh_config(hosts))
    MORE_HOSTS.write_text(more_hosts(hosts[2:]))
    _give_to_caller()


def close_connections(hosts: Sequence[Host]) -> None:
    """Open master connections of hosts that are about to vanish would only time out."""
    if CONFIG.exists():
        for host in reversed(hosts):
            run(["ssh", "-F", CONFIG, "-O", "exit", host.inventory_name], check=False)


def forget() -> None:
    for path in (KNOWN_HOSTS, CONFIG, MORE_HOSTS, KEY, KEY.with_suffix(".pub")):
        path.unlink(missing_ok=True)
    if STATE.exists() and not any(STATE.iterdir()):
        STATE.rmdir()


def ssh_config(hosts: Sequence[Host]) -> str:
    head = hosts[0]
    # The head is entered through its engine, not its address: when the lab is down a connection fails at once instead
    # of leaving this machine for an address that belongs to somebody else.
    blocks = [
        "# Written by tests/lab/lab.py; `up` writes it anew.",
        f"Host {head.inventory_name}",
        f"    ProxyCommand docker exec -i {head.container} /usr/sbin/sshd -i",
    ]
    for host in hosts[1:]:
        blocks += [
            f"Host {host.inventory_name}",
            f"    HostName {host.address(RAILS[0])}",
            f"    ProxyJump {head.inventory_name}",
            f"    HostKeyAlias {host.inventory_name}",
        ]
    blocks += [
        "Host *",
        f"    User {USER}",
        f"    IdentityFile {KEY}",
        "    IdentitiesOnly yes",
        f"    UserKnownHostsFile {KNOWN_HOSTS}",
        "    StrictHostKeyChecking yes",
        "    ControlMaster auto",
        "    ControlPersist 60s",
        # Short: the path of a socket may have 107 bytes. Of this user: ssh refuses the sockets of others.
        f"    ControlPath {_socket_folder()}/%C",
        "    ServerAliveInterval 5",
        "    ServerAliveCountMax 3",
        "    LogLevel ERROR",
    ]
    return "\n".join(blocks) + "\n"


def more_hosts(hosts: Sequence[Host]) -> str:
    """The hosts that inventories/lab_inventory, which has two, does not know."""
    if not hosts:
        return "---\n{}\n"
    lines = ["---", "worker:", "  hosts:"]
    for host in hosts:
        lines += [f"    {host.inventory_name}:", f"      ansible_ssh_common_args: -F {CONFIG}"]
        # The inventory's own path is relative to a file that these hosts are not in.
        lines += [f"      spark_preset: {LAB / 'presets' / 'qwen35_tiny.yml'}", "      spark_fabric_addresses:"]
        lines += [f"        - {host.address(network)}" for network in host.networks if network != MANAGEMENT]
    return "\n".join(lines) + "\n"


def _socket_folder() -> Path:
    folder = Path(f"/tmp/dgxspark-lab-{os.environ.get('SUDO_UID', os.getuid())}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _give_to_caller() -> None:
    """With sudo, the checkout's owner is who runs Ansible."""
    if "SUDO_UID" in os.environ:
        owner = CHECKOUT.stat()
        for path in (STATE, *STATE.iterdir(), _socket_folder()):
            os.chown(path, owner.st_uid, owner.st_gid)
