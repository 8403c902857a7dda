"""Networks and hosts: make them, start them, bring them to their start state, remove them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import disks, images
from .settings import (
    ENGINE_GPU_MIB,
    FAULTY_IMAGE,
    LABEL,
    MANAGEMENT,
    NETWORKS,
    NO_ARCH_IMAGE,
    OLD_IMAGE,
    RDMA_DEVICES,
    REPOSITORY,
    SERVICE_IMAGE,
    SERVING_IMAGE,
    SGLANG_IMAGE,
    Host,
    all_hosts,
)
from .shell import content_hash, docker, in_parallel, inside, output, pipe, run, say, succeeds, wait_until

CGROUPS = Path("/sys/fs/cgroup")
RUNNING_WITHIN = 60  # seconds; 5 are usual


def make_networks() -> None:
    for network in NETWORKS:
        if not succeeds(["docker", "network", "inspect", network.name]):
            options = ["--internal", f"--subnet={network.subnet}", f"--label={LABEL}=1"]
            options += ["-o", f"com.docker.network.driver.mtu={network.mtu}"]
            docker("network", "create", *options, network.name)


def spec(host: Host, image: str) -> str:
    """Equal for two host containers that need not be made anew."""
    return content_hash(image, json.dumps(_facts(host), sort_keys=True), *_run_options(host), str(host.folder))


def is_current(host: Host, image: str) -> bool:
    """Made from this image, with these options, and once brought to its start state."""
    wanted = f'{{{{.Id}}}} {{{{index .Config.Labels "{LABEL}.spec"}}}}'
    found = run(["docker", "inspect", "-f", wanted, host.container], check=False).stdout.split()
    ready = _ready_file(host)
    return found[1:] == [spec(host, image)] and ready.exists() and ready.read_text() == found[0]


def mark_ready(host: Host) -> None:
    _ready_file(host).write_text(output(["docker", "inspect", "-f", "{{.Id}}", host.container]))


def _ready_file(host: Host) -> Path:
    """Holds the id of the host's container once it is complete: an `up` that was broken off is done again."""
    return host.folder / "ready"


def is_running(host: Host) -> bool:
    return output(["docker", "ps", "-q", "-f", f"name=^{host.container}$"]) != ""


def make(host: Host, image: str) -> None:
    """Start the host afresh. Its Docker data and model folder stay."""
    remove(host)
    disks.mount(host)
    first, *others = host.networks
    options = [*_run_options(host), "--label", f"{LABEL}.spec={spec(host, image)}"]
    docker("create", *options, "--network", first.name, "--ip", host.address(first), image)
    for network in others:
        docker("network", "connect", "--ip", host.address(network), network.name, host.container)
    _copy_facts(host)
    start(host)


def start(host: Host) -> None:
    docker("start", host.container)
    wait_until(lambda: _is_up(host), RUNNING_WITHIN, f"{host.container} is up")


def remove(host: Host) -> None:
    if not succeeds(["docker", "inspect", host.container]):
        return
    inner = disks.inner_containers(host)
    ids = [*inner, output(["docker", "inspect", "-f", "{{.Id}}", host.container])]
    for identity in inner:
        _thaw(identity)
    docker("rm", "-f", "-v", host.container)
    for identity in ids:
        _remove_empty_cgroups(identity)


def existing() -> list[Host]:
    names = output(["docker", "ps", "-a", "--format", "{{.Names}}", "-f", f"label={LABEL}.spec"]).split()
    return [host for host in all_hosts() if host.container in names]


def to_start_state(host: Host, service_image: str) -> None:
    """Only for a host that was just made: everything but its Docker data is as in its image."""
    load(host, service_image, SERVICE_IMAGE)
    kept = [SERVICE_IMAGE, OLD_IMAGE, SERVING_IMAGE] if host.role == "head" else [SERVICE_IMAGE]
    inside(host.container, "lab-start-state", host.role, *kept)


def load(host: Host, image: str, name: str) -> None:
    """Give the host an image of the outer engine under another name, unless it has exactly this one."""
    wanted = output(["docker", "image", "inspect", "-f", "{{.Id}}", image])
    found = run(
        ["docker", "exec", host.container, "docker", "image", "inspect", "-f", "{{.Id}}", name], check=False
    ).stdout.strip()
    if found == wanted:
        return
    say(f"loading {name} into {host.container}")
    pipe(["docker", "save", image], ["docker", "exec", "-i", host.container, "docker", "load", "-q"])
    inside(host.container, "docker", "tag", image, name)
    inside(host.container, "docker", "image", "rm", image)


def make_image_without_architecture(host: Host) -> None:
    """The serving image whose vLLM has forgotten the architecture."""
    _make_derived_image(host, NO_ARCH_IMAGE, (images.SERVING_FOLDER / "forget_architecture.py").read_text())


def make_faulty_image(host: Host) -> None:
    """The serving image whose `vllm` fails at the moment that LAB_FAULT names."""
    program = (images.FAULTY_FOLDER / "vllm.py").read_text()
    script = (
        "import os, pathlib\n"
        "os.rename('/usr/local/bin/vllm', '/usr/local/bin/vllm-real')\n"
        f"pathlib.Path('/usr/local/bin/vllm').write_text({program!r})\n"
        "os.chmod('/usr/local/bin/vllm', 0o755)\n"
    )
    _make_derived_image(host, FAULTY_IMAGE, script)


def make_sglang_image(host: Host) -> None:
    """The serving image with the package of SGLang and a stand-in of its server."""
    build = "/var/tmp/lab-sglang"
    run(["docker", "exec", host.container, "mkdir", "-p", f"{build}/wheels"])
    docker("cp", f"{images.SGLANG_FOLDER}/.", f"{host.container}:{build}")
    docker("cp", f"{images.sglang_wheel()}/.", f"{host.container}:{build}/wheels")
    script = (images.SGLANG_FOLDER / "install.py").read_text()
    _make_derived_image(host, SGLANG_IMAGE, script, "-v", f"{build}:/build:ro")


def _make_derived_image(host: Host, name: str, script: str, *options: str) -> None:
    """The serving image after a Python script. Made on the host: a copy would take a minute."""
    if succeeds(["docker", "exec", host.container, "docker", "image", "inspect", name]):
        return
    say(f"making {name} on {host.container}")
    container = "lab-build-derived"
    run(["docker", "exec", host.container, "docker", "rm", "-f", container], check=False)
    inner = ["docker", "run", "-i", "--name", container, "--network", "none", *options, SERVING_IMAGE, "python3", "-"]
    inside(host.container, *inner, stdin=script)
    inside(host.container, "docker", "commit", "--change", images.SHELL, container, name)
    inside(host.container, "docker", "rm", container)


def remove_networks() -> None:
    for name in output(["docker", "network", "ls", "--format", "{{.Name}}", "-f", f"label={LABEL}"]).split():
        docker("network", "rm", name)


def remove_images() -> None:
    """By name and label: an image that somebody derived from one of these has the label, too, and stays."""
    found = ["-f", f"label={LABEL}", "-f", f"reference={REPOSITORY}/*"]
    for name in output(["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", *found]).split():
        docker("image", "rm", name)


def remove_build_containers() -> None:
    for identity in output(["docker", "ps", "-aq", "-f", f"label={LABEL}"]).split():
        docker("rm", "-f", "-v", identity)


def probe(host: Host, port: int) -> str:
    """What another machine of the management network sees of a port: open, closed or filtered."""
    script = (
        "import socket, sys\n"
        "try:\n    socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close(); print('open')\n"
        "except ConnectionRefusedError:\n    print('closed')\n"
        "except OSError:\n    print('filtered')\n"
    )
    words = ["--rm", "--label", f"{LABEL}=1", "--network", MANAGEMENT.name, images.base()]
    return docker("run", *words, "python3", "-c", script, host.address(MANAGEMENT), str(port))


def _run_options(host: Host) -> list[str]:
    return [
        *["--name", host.container, "--hostname", host.container, "--label", f"{LABEL}=1"],
        *["--stop-signal", "SIGRTMIN+3"],  # systemd's order to shut down
        # Not --privileged: that asks for CAP_SYS_RESOURCE, which root of the outer machine may lack.
        *["--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE"],
        *["--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"],
        *["--security-opt", "systempaths=unconfined", "--cgroupns", "host", "-v", f"{CGROUPS}:{CGROUPS}:rw"],
        *["--shm-size", "2g", "--tmpfs", "/run:exec", "--tmpfs", "/run/lock"],
        *["-v", f"{disks.docker_folder(host)}:/var/lib/docker", "-v", f"{disks.model_folder(host)}:/srv/models"],
    ]


def _facts(host: Host) -> dict[str, object]:
    return {
        "role": host.role,
        "interfaces": [
            {"address": host.address(network), "name": network.interface, "mtu": network.mtu}
            for network in host.networks
        ],
        "rdma_devices": RDMA_DEVICES,
    }


def _copy_facts(host: Host) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "lab"
        folder.mkdir(mode=0o755)
        (folder / "host.json").write_text(json.dumps(_facts(host), indent=1) + "\n")
        (folder / "gpu_mib").write_text(f"{ENGINE_GPU_MIB}\n")
        docker("cp", f"{folder}/.", f"{host.container}:/etc/lab")
    docker("cp", _host_key(host), f"{host.container}:/etc/ssh/")


def _host_key(host: Host) -> Path:
    """Kept over a reset, so that what a checkout knows about the host stays true."""
    key = host.folder / "ssh_host_ed25519_key"
    if not key.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host.container, "-f", key])
    return key


def public_host_key(host: Host) -> str:
    kind, key, *_ = _host_key(host).with_suffix(".pub").read_text().split()
    return f"{kind} {key}"


def _is_up(host: Host) -> bool:
    # `degraded` counts: a unit that fails is for whoever looks at it, the host is there
    state = run(["docker", "exec", host.container, "systemctl", "is-system-running"], check=False).stdout.strip()
    return state in {"running", "degraded"}


def _thaw(inner_container: str) -> None:
    """A paused container in a host cannot be killed, and so the host cannot be removed. Its cgroup is one of this machine."""
    states = {
        f"freezer/docker/{inner_container}/freezer.state": "THAWED",
        # cgroup v2 with either driver of the host's engine.
        f"docker/{inner_container}/cgroup.freeze": "0",
        f"system.slice/docker-{inner_container}.scope/cgroup.freeze": "0",
    }
    for name, thawed in states.items():
        if (CGROUPS / name).exists():
            (CGROUPS / name).write_text(thawed)


def _remove_empty_cgroups(identity: str) -> None:
    """With cgroup v1 the folders of a killed host and of its containers stay behind."""
    for controller in CGROUPS.glob("*"):
        top = controller / "docker" / identity
        if top.is_dir():
            for folder, _, _ in os.walk(top, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    return  # something lives in it


def start_state(hosts: Sequence[Host]) -> None:
    service_image = images.service()
    in_parallel(lambda host: to_start_state(host, service_image), hosts)
