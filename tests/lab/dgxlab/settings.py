"""What the lab consists of: names, addresses, sizes and the folders it uses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent
CHECKOUT = LAB.parent.parent
CACHE = Path(os.environ.get("DGXSPARK_LAB_CACHE", "/var/cache/dgxspark-lab"))
# What one checkout needs to reach the lab (key, ssh_config, known_hosts). Git ignores it.
STATE = CHECKOUT / ".lab"

LABEL = "io.dgxspark.lab"
REPOSITORY = "dgxspark-lab"

MTU = 9000
MAX_HOSTS = 4


@dataclass(frozen=True)
class Network:
    name: str
    prefix: str  # the first three octets of a /24
    interface: str  # what a Spark calls its interface to this network
    mtu: int

    @property
    def subnet(self) -> str:
        return f"{self.prefix}.0/24"


# The two rails are the two functions of one QSFP port of a Spark, enP7s7 is its 10 GbE port.
RAILS = (
    Network("dgxspark-lab-rail1", "192.168.240", "enp1s0f0np0", MTU),
    Network("dgxspark-lab-rail2", "192.168.241", "enP2p1s0f0np0", MTU),
)
MANAGEMENT = Network("dgxspark-lab-management", "192.168.242", "enP7s7", 1500)
NETWORKS = (*RAILS, MANAGEMENT)

# RDMA device -> its interface. The second QSFP port has no cable.
RDMA_DEVICES = {
    "rocep1s0f0": "enp1s0f0np0",
    "roceP2p1s0f0": "enP2p1s0f0np0",
    "rocep1s0f1": "enp1s0f1np1",
    "roceP2p1s0f1": "enP2p1s0f1np1",
}

# The images that the head starts with, besides SERVICE_IMAGE, which every host has.
OLD_IMAGE = "vllm-node:0.14"
SERVING_IMAGE = "vllm-node:0.32"
SERVICE_IMAGE = "lab-service:1"
NO_ARCH_IMAGE = "vllm-node:no-arch"
FAULTY_IMAGE = "vllm-node:faulty"
SGLANG_IMAGE = "sglang-node:0.5"

MODEL_FOLDER = "/srv/models"
MODEL = "qwen35-tiny"

# Sparse files, so these are limits and not what they take. Docker: two serving images of 3.3 GB and room for a third.
DOCKER_DISK_GIB = 16
MODEL_DISK_GIB = 1

# What one rank of the engine counts as on the simulated GPU. Of 119.7 GiB, 90000 MiB are taken by the service that runs
# first: the new one fits only when that one is gone.
ENGINE_GPU_MIB = 62000

USER = "spark"


@dataclass(frozen=True)
class Host:
    number: int  # 0 is the head

    @property
    def role(self) -> str:
        return "head" if self.number == 0 else "worker"

    @property
    def container(self) -> str:
        return "spark-head" if self.number == 0 else "spark-worker" + (str(self.number) if self.number > 1 else "")

    @property
    def inventory_name(self) -> str:
        return self.container.replace("spark-", "lab-")

    @property
    def networks(self) -> tuple[Network, ...]:
        return NETWORKS if self.number == 0 else RAILS

    def address(self, network: Network) -> str:
        return f"{network.prefix}.{12 + self.number}"

    @property
    def folder(self) -> Path:
        return CACHE / "hosts" / self.container


def hosts(count: int) -> list[Host]:
    return [Host(number) for number in range(count)]


def all_hosts() -> list[Host]:
    return hosts(MAX_HOSTS)
