"""nvidia-smi of a lab host: what driver 580.95.05 prints for a GB10, whose memory figures are not available."""

from __future__ import annotations

import sys
import time
from xml.sax.saxutils import escape

from gpu_processes import Holder, holders

DRIVER = "580.95.05"
CUDA = "13.0"
NAME = "NVIDIA GB10"
UUID = "GPU-00000000-0000-0000-0000-000000000001"
BUS = "0000000F:01:00.0"

# field -> (value, unit); what is missing here is "[N/A]", as the memory figures are on a GB10
GPU_FIELDS = {
    "index": ("0", ""),
    "name": (NAME, ""),
    "gpu_name": (NAME, ""),
    "uuid": (UUID, ""),
    "gpu_uuid": (UUID, ""),
    "pci.bus_id": (BUS, ""),
    "gpu_bus_id": (BUS, ""),
    "driver_version": (DRIVER, ""),
    "count": ("1", ""),
    "compute_cap": ("12.1", ""),
    "persistence_mode": ("Enabled", ""),
    "compute_mode": ("Default", ""),
    "mig.mode.current": ("[N/A]", ""),
    "temperature.gpu": ("45", ""),
    "power.draw": ("11.50", "W"),
    "utilization.gpu": ("0", "%"),
    "utilization.memory": ("0", "%"),
    "pstate": ("P0", ""),
}
HEADER_UNITS = {"memory": "MiB", "utilization": "%", "power": "W", "used_memory": "MiB", "used_gpu_memory": "MiB"}

TABLE = """{date}
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI {driver}              Driver Version: {driver}      CUDA Version: {cuda}     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA GB10                    On  |   {bus} Off |                  N/A |
| N/A   45C    P0             11W /  N/A  | Not Supported          |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
{rows}
+-----------------------------------------------------------------------------------------+"""


def query_gpu(fields: list[str], header: bool, units: bool) -> list[str]:
    lines = [", ".join(_titled(field, units) for field in fields)] if header else []
    values = []
    for field in fields:
        value, unit = GPU_FIELDS.get(field, ("[N/A]", ""))
        values.append(f"{value} {unit}" if units and unit else value)
    return [*lines, ", ".join(values)]


def query_processes(fields: list[str], header: bool, units: bool) -> list[str]:
    lines = [", ".join(_titled(field, units) for field in fields)] if header else []
    for holder in holders():
        size = f"{holder.mib} MiB" if units else str(holder.mib)
        known = {
            "pid": str(holder.pid),
            "process_name": holder.name,
            "name": holder.name,
            "used_memory": size,
            "used_gpu_memory": size,
            "gpu_uuid": UUID,
            "gpu_name": NAME,
            "gpu_bus_id": BUS,
        }
        lines.append(", ".join(known.get(field, "[N/A]") for field in fields))
    return lines


def table() -> list[str]:
    rows = [_table_row(holder) for holder in holders()]
    rows = rows or ["|  No running processes found" + " " * 61 + "|"]
    return [TABLE.format(date=time.ctime(), driver=DRIVER, cuda=CUDA, bus=BUS, rows="\n".join(rows))]


def xml() -> list[str]:
    processes = "".join(
        "<process_info><gpu_instance_id>N/A</gpu_instance_id><compute_instance_id>N/A</compute_instance_id>"
        f"<pid>{holder.pid}</pid><type>C</type><process_name>{escape(holder.name)}</process_name>"
        f"<used_memory>{holder.mib} MiB</used_memory></process_info>"
        for holder in holders()
    )
    memory = "<total>N/A</total><reserved>N/A</reserved><used>N/A</used><free>N/A</free>"
    return [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        f"<nvidia_smi_log><timestamp>{time.ctime()}</timestamp><driver_version>{DRIVER}</driver_version>"
        f"<cuda_version>{CUDA}</cuda_version><attached_gpus>1</attached_gpus>"
        f'<gpu id="{BUS}"><product_name>{NAME}</product_name><product_architecture>Blackwell</product_architecture>'
        f"<uuid>{UUID}</uuid><minor_number>0</minor_number>"
        "<mig_mode><current_mig>N/A</current_mig><pending_mig>N/A</pending_mig></mig_mode>"
        f"<fb_memory_usage>{memory}</fb_memory_usage><processes>{processes}</processes></gpu></nvidia_smi_log>",
    ]


def _titled(field: str, units: bool) -> str:
    unit = HEADER_UNITS.get(field) or HEADER_UNITS.get(field.split(".")[0])
    return f"{field} [{unit}]" if units and unit else field


def _table_row(holder: Holder) -> str:
    name = holder.name if len(holder.name) <= 38 else "..." + holder.name[-35:]
    return f"|    0   N/A  N/A{holder.pid:>16}      C   {name:<38}{holder.mib:>5}MiB |"


def main(arguments: list[str]) -> int:
    options = dict(argument.partition("=")[::2] for argument in arguments)
    style = options.get("--format", "csv").split(",")
    header, units = "noheader" not in style, "nounits" not in style
    if "--query-gpu" in options:
        lines = query_gpu(_fields(options["--query-gpu"]), header, units)
    elif "--query-compute-apps" in options:
        lines = query_processes(_fields(options["--query-compute-apps"]), header, units)
    elif {"-q", "-x"} <= options.keys():
        lines = xml()
    elif "-L" in options or "--list-gpus" in options:
        lines = [f"GPU 0: {NAME} (UUID: {UUID})"]
    elif not arguments:
        lines = table()
    else:
        print(f"nvidia-smi of the lab does not know: {' '.join(arguments)}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


def _fields(text: str) -> list[str]:
    return [field.strip() for field in text.split(",")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
