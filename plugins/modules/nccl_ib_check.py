#!/usr/bin/python
# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_ib_check
short_description: Check whether NCCL will use the RDMA fabric, and whether it did
version_added: 0.1.0
description:
  - Reads the RDMA devices of a host from C(sysfs), says which of them NCCL can use and why the others cannot be used, and
    returns the environment that ranks on this host should run with.
  - Judges a planned environment (O(env)) against what the host has.
  - Reads the output of ranks that ran with C(NCCL_DEBUG=INFO) (O(log), O(log_path)) and says which transport really carried
    data between hosts. NCCL falls back to TCP without an error, so a served request proves nothing.
  - That a port is down is no fault, unless it is named. Most ports have no cable.
  - No tools of OFED are needed.
extends_documentation_fragment:
  - dgxspark.serving.attributes
  - dgxspark.serving.attributes.info_module
  - dgxspark.serving.attributes.actiongroup_spark
  - dgxspark.serving.findings
options:
  sysfs_root:
    description: Where the C(sysfs) file system of the host is.
    type: path
    default: /sys
  proc_root:
    description: Where the C(proc) file system of the host is. It tells why memory could not be registered.
    type: path
    default: /proc
  devices:
    description: Look at these RDMA devices only. Each of them must be up.
    type: list
    elements: str
    default: []
  interfaces:
    description:
      - Look at RDMA devices of these network interfaces only. Each of them must be up.
      - The first one is the interface over which ranks find each other.
    type: list
    elements: str
    default: []
  peers:
    description:
      - Addresses of other hosts on the fabric. Each must answer packets of the full MTU of its rail that may not be split.
    type: list
    elements: str
    default: []
  env:
    description:
      - The environment that is planned for the ranks on this host.
      - V(null) stands for a variable that is not set. An empty string does not.
    type: dict
    default: {}
  log:
    description:
      - Output of ranks, a text or a list of texts. One text can hold several ranks.
      - Give the output of one start only. What failed in an earlier one is judged as well.
    type: raw
  log_path:
    description: Files on the host with output of ranks.
    type: list
    elements: path
    default: []
  expect_rails:
    description: How many rails are planned. Fewer is an error. V(0) if no fabric is needed.
    type: int
  expect_mtu:
    description: The MTU that all rails must have.
    type: int
author:
  - dgxspark.serving contributors (@dgxspark)
seealso:
  - module: dgxspark.serving.gpu_memory_check
  - module: dgxspark.serving.registry_probe
"""

EXAMPLES = r"""
- name: Check that both rails can be used and that the other host can be reached over them
  dgxspark.serving.nccl_ib_check:
    expect_rails: 2
    expect_mtu: 9000
    peers:
      - 192.168.100.12
      - 192.168.101.12
  register: fabric

- name: Judge an environment before it is used
  dgxspark.serving.nccl_ib_check:
    env:
      NCCL_IB_HCA: rocep1s0f0,roceP2p1s0f0
      NCCL_SOCKET_IFNAME: enp1s0f0np0

- name: Fail unless the ranks really use RDMA
  dgxspark.serving.nccl_ib_check:
    log_path: /var/log/vllm/rank0.log
  register: nccl
  failed_when: nccl.transport.verdict != 'ib'
"""

RETURN = r"""
msg:
  description: A summary for a terminal.
  returned: always
  type: str
  sample: |-
    rocep1s0f0/1 enp1s0f0np0: usable, 192.168.100.11, MTU 9000, 200 Gb/s
    roceP2p1s0f0/1 enP2p1s0f0np0: usable, 192.168.101.11, MTU 9000, 200 Gb/s
devices:
  description: The ports of the RDMA devices that were looked at.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the device.
      type: str
      sample: rocep1s0f0
    port:
      description: Number of the port.
      type: int
      sample: 1
    netdev:
      description: Its network interface, or empty.
      type: str
      sample: enp1s0f0np0
    state:
      description: State of the port, such as V(ACTIVE) or V(DOWN).
      type: str
      sample: ACTIVE
    link_layer:
      description: V(Ethernet) or V(InfiniBand).
      type: str
      sample: Ethernet
    rate_gbps:
      description: Rate of the link. V(null) if unknown.
      type: float
      sample: 200.0
    mtu:
      description: MTU of the network interface. V(null) if there is none.
      type: int
      sample: 9000
    ipv4:
      description: IPv4 address with which the device is reached, or empty.
      type: str
      sample: 192.168.100.11
    roce_v2_ipv4_gid_index:
      description: Index of the GID that NCCL picks by itself. V(null) if there is none. It moves - do not pin it.
      type: int
      sample: 3
    usable:
      description: Whether NCCL can use the port for connections to other hosts.
      type: bool
    reason:
      description: Why it is not usable, or empty.
      type: str
      sample: the port is DOWN
rails:
  description: The usable ports, in the order of O(interfaces), otherwise by PCI address.
  returned: always
  type: list
  elements: dict
  contains:
    device:
      description: Name of the RDMA device.
      type: str
      sample: rocep1s0f0
    netdev:
      description: Its network interface.
      type: str
      sample: enp1s0f0np0
    ipv4:
      description: Its address.
      type: str
      sample: 192.168.100.11
    subnet:
      description: The subnet of the address, or empty if it is not known.
      type: str
      sample: 192.168.100.0/24
    mtu:
      description: MTU of the interface.
      type: int
      sample: 9000
    rate_gbps:
      description: Rate of the link.
      type: float
      sample: 200.0
env:
  description: The environment that ranks on this host should run with. It differs from host to host.
  returned: always
  type: dict
  sample:
    GLOO_SOCKET_IFNAME: enp1s0f0np0
    NCCL_IB_ADDR_FAMILY: AF_INET
    NCCL_IB_HCA: =rocep1s0f0,roceP2p1s0f0
    NCCL_IB_ROCE_VERSION_NUM: "2"
    NCCL_SOCKET_IFNAME: enp1s0f0np0
peers:
  description: What came of O(peers).
  returned: always
  type: list
  elements: dict
  contains:
    address:
      description: The address.
      type: str
      sample: 192.168.100.12
    netdev:
      description: The interface of the rail in whose subnet it is, or empty.
      type: str
      sample: enp1s0f0np0
    mtu:
      description: The size of the packets that were sent.
      type: int
      sample: 9000
    reachable:
      description: Whether it answered at all.
      type: bool
    full_size:
      description: Whether it answered packets of the full size.
      type: bool
transport:
  description: What the logs prove.
  returned: always
  type: dict
  contains:
    verdict:
      description: V(ib) if all ranks in the logs used RDMA between hosts, V(socket) if one did not, V(unknown) if the logs
        prove neither.
      type: str
      sample: ib
    plugin:
      description: The transport plugin of the ranks, or empty.
      type: str
      sample: IBext_v10
    nccl_version:
      description: Version of NCCL, or empty.
      type: str
      sample: 2.28.9
    devices:
      description: The RDMA devices that NCCL opened.
      type: list
      elements: str
      sample: [rocep1s0f0, roceP2p1s0f0]
    channels:
      description: Number of channels by transport.
      type: dict
      sample: {"NET/IB/0": 2, "NET/IB/1": 2}
    ranks:
      description: The same for each process in the logs, with V(host), V(pid), V(rank) and V(nranks).
      type: list
      elements: dict
findings:
  description: What the check has to say, worst first.
  returned: always
  type: list
  elements: dict
  sample:
    - id: FABRIC.NO_IPV4_GID
      severity: warning
      subject: roceP2p1s0f1
      message: Its link is up, but it cannot be used - it has no RoCE v2 GID with an IPv4 address.
      remedy: Give enP2p1s0f1np1 an address in a subnet of its own.
      evidence: ""
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.serving.plugins.module_utils._check_module import finish
from ansible_collections.dgxspark.serving.plugins.module_utils._fabric_check import (
    check_fabric,
    fabric_arguments,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import findings_argument_spec
from ansible_collections.dgxspark.serving.plugins.module_utils._log_input import CannotLook


def main() -> None:
    module = AnsibleModule(
        argument_spec={**fabric_arguments(), **findings_argument_spec()},
        supports_check_mode=True,
    )
    try:
        results = check_fabric(module.params)
    except CannotLook as error:
        module.fail_json(msg=str(error))
    finish(module, changed=False, **results)


if __name__ == "__main__":
    main()
