"""The tiny models: trained once in the serving image, kept in the cache, copied into the head's model folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from . import disks, images
from .settings import CACHE, LABEL, MODEL, Host
from .shell import content_hash, docker, run, say

MAKER = "make_tiny_model.py"
# name of the mutation -> option of the maker; "" is the model that a deployment is to serve
VARIANTS = {"": [], "wrong-answer": ["--wrong-answer"], "no-reasoning": ["--no-reasoning"]}


def name(variant: str) -> str:
    return f"{MODEL}-{variant}" if variant else MODEL


def trained(variant: str) -> Path:
    """The folder of the model in the cache; it is trained when it is not there (about a minute)."""
    source = images.SERVING_FOLDER / MAKER
    folder = CACHE / "models" / f"{name(variant)}-{content_hash(source, *VARIANTS[variant])}"
    if folder.exists():
        return folder
    say(f"training the model {name(variant)}")
    unfinished = folder.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    mounts = ["-v", f"{images.SERVING_FOLDER}:/setup:ro", "-v", f"{unfinished}:/model"]
    words = ["--rm", "--label", f"{LABEL}=1", "--network", "none", *mounts, images.serving()]
    docker("run", *words, "python3", f"/setup/{MAKER}", "/model", *VARIANTS[variant])
    unfinished.rename(folder)
    return folder


def put_on(host: Host, variant: str) -> None:
    """World-readable and root's, as a model that an administrator put there."""
    source, target = trained(variant), disks.model_folder(host) / name(variant)
    run(["rsync", "-a", "--delete", "--chown=root:root", "--chmod=D0755,F0644", f"{source}/", f"{target}/"])


def clear(host: Host) -> None:
    for path in disks.model_folder(host).iterdir():
        if path.name == "lost+found":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
