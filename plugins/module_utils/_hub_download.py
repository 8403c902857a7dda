# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Get a model from the Hugging Face hub, or a mirror of it, with the hub's own library, or from another folder.

PRIVATE to this collection. The library runs in a process of its own, with the token in its environment: never on a command
line. It keeps what is not complete below C(.cache) of the folder, goes on with it in a later run, and gives a file its name when
it is complete.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._model_folder import (
    HUB_NOTES,
    ModelFolderError,
    examine,
    room_for,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.module_utils._weights_copy import (
    Entry,
    arrived_bytes,
    copy_local,
)

# Where role staging puts the library on the head when a download is needed.
HUB_LIBRARY_FOLDER = "/opt/dgxspark/hub"
TRIES = 8
FIRST_PAUSE_SECONDS = 2
LONGEST_PAUSE_SECONDS = 60
# Files at a time, as the library's own default.
STREAMS = 8
# Classes of errors of the library that another try does not mend (huggingface_hub, errors.py).
_FINAL = (
    "GatedRepoError",
    "DisabledRepoError",
    "RepositoryNotFoundError",
    "RevisionNotFoundError",
    "ModuleNotFoundError",
    "ImportError",
)
_RUNNER = """
import json, sys
task = json.loads(sys.stdin.readline())
sys.path.insert(0, task["library"])
def say(**what):
    print(json.dumps(what), flush=True)
try:
    import huggingface_hub
    known = dict(repo_id=task["repository"], revision=task["revision"] or None)
    info = huggingface_hub.HfApi().model_info(files_metadata=True, **known)
    say(total=sum(file.size or 0 for file in info.siblings))
    if task["folder"]:
        known["revision"] = info.sha
        huggingface_hub.snapshot_download(local_dir=task["folder"], max_workers=task["streams"], **known)
    say(done=True, revision=info.sha)
except BaseException as error:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    say(error=type(error).__name__, status=status, message=str(error))
"""


@dataclass(frozen=True)
class HubSource:
    """endpoint: of a mirror, empty for the hub; token: empty for what C(hf auth login) has stored on this host."""

    repository: str
    revision: str = ""
    endpoint: str = ""
    token: str = ""
    library_folder: str = HUB_LIBRARY_FOLDER

    def __repr__(self) -> str:
        return f"HubSource({self.repository}, {self.endpoint})"

    @property
    def where(self) -> str:
        return self.endpoint or "the Hugging Face hub"


def _run(source: HubSource, folder: str, on_total: Callable[[int], None]) -> dict[str, Any]:
    """One try; the library's last word. An empty folder only asks how large the model is."""
    environment = {
        **os.environ,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **({"HF_ENDPOINT": source.endpoint} if source.endpoint else {}),
        **({"HF_TOKEN": source.token} if source.token else {}),
    }
    task = {
        "library": source.library_folder,
        "repository": source.repository,
        "revision": source.revision,
        "folder": folder,
        "streams": STREAMS,
    }
    # Watched while it runs, for hours: not for run_command.
    with subprocess.Popen(  # pylint: disable=ansible-bad-function
        [sys.executable, "-c", _RUNNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        last: dict[str, Any] = {"error": "Killed", "message": "the download ended without a word", "status": 0}
        try:
            if process.stdin:
                process.stdin.write(json.dumps(task) + "\n")
                process.stdin.close()
                process.stdin = None
            for line in process.stdout or ():
                said = json.loads(line) if line.startswith("{") else {}
                if "total" in said:
                    on_total(int(said["total"]))
                elif said:
                    last = said
        finally:
            process.kill()
    return last


def size_at(source: HubSource) -> int:
    """Bytes of the model in the hub. Raises ModelFolderError."""
    sizes: list[int] = []
    last = _run(source, "", sizes.append)
    if "error" in last:
        raise ModelFolderError(_explained(source, last))
    return sizes[0]


def download(
    source: HubSource,
    folder: str,
    progress: Progress,
    on_total: Callable[[int], None],
    pause: Callable[[float], Any] = time.sleep,
) -> None:
    """Bring the model to C(folder), with patience. Raises ModelFolderError."""
    os.makedirs(folder, mode=0o755, exist_ok=True)
    progress.enter("asking the hub")
    total = size_at(source)
    room_for(folder, total, downloaded_bytes(folder))
    on_total(total)
    tries, wait = 0, float(FIRST_PAUSE_SECONDS)
    while True:
        before = downloaded_bytes(folder)
        progress.enter("downloading", total, lambda: downloaded_bytes(folder))
        last = _run(source, folder, lambda _total: None)
        if last.get("done"):
            return
        if downloaded_bytes(folder) > before:
            tries, wait = 0, float(FIRST_PAUSE_SECONDS)
        tries += 1
        if not _worth_another_try(last) or tries >= TRIES:
            raise ModelFolderError(_explained(source, last))
        progress.enter(f"the download broke ({last['error']}), next try in {wait:.0f} s", total)
        pause(wait)
        wait = min(wait * 2, LONGEST_PAUSE_SECONDS)


def downloaded_bytes(folder: str) -> int:
    """Of complete and of incomplete files."""
    total = 0
    for parent, _folders, names in os.walk(folder):
        for name in names:
            if f"/{HUB_NOTES}/" in f"{parent}/" and not name.endswith(".incomplete"):
                continue
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _worth_another_try(last: Mapping[str, Any]) -> bool:
    status = int(last.get("status") or 0)
    return (
        last["error"] not in _FINAL
        and not (400 <= status < 500 and status not in (408, 429))
        and "No space left" not in str(last["message"])
    )


def _explained(source: HubSource, last: Mapping[str, Any]) -> str:
    message, kind, status = str(last["message"]).strip(), last["error"], int(last.get("status") or 0)
    first = message.splitlines()[0] if message else kind
    if kind in ("ModuleNotFoundError", "ImportError"):
        return (
            f"{source.repository} cannot be downloaded: the head's huggingface_hub cannot be used ({first}). Install it "
            "beside ansible-core on the control node (pip install huggingface_hub), from where the head gets it."
        )
    if kind == "GatedRepoError":
        return f"{source.repository} is gated: accept its licence on the hub, and give a token of that account (spark_hub_token)."
    if status in (401, 403) or kind == "RepositoryNotFoundError":
        return (
            f"{source.where} does not give {source.repository} ({status or kind}): it does not exist there or wants a token. Check "
            "the preset's model.repository and spark_hub_token."
        )
    if "No space left" in message:
        return "The disk is full. Make room and run again: what has arrived is kept and gone on with."
    return (
        f"{source.repository} could not be downloaded from {source.where}: {kind}: {first} Run again: what has arrived is kept. "
        "Or put the model on the head yourself, or set spark_model_source to a folder or a mirror."
    )


def copy_from(source: str, folder: str, progress: Progress, on_total: Callable[[int], None]) -> None:
    """Copy the model from another folder of this host, such as a mounted share. Raises ModelFolderError."""
    model = examine(source)
    entries = []
    for name, size in model.files.items():
        entries.append(Entry(name, size, int(os.stat(os.path.join(source, name)).st_mtime)))
    wanted = [entry for entry in entries if not entry.is_at(folder)]
    total = sum(entry.size for entry in wanted)
    on_total(model.size)
    room_for(folder, total, arrived_bytes(folder, wanted) if os.path.isdir(folder) else 0)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    progress.enter(f"copying from {source}", total, lambda: min(arrived_bytes(folder, wanted), total))
    copy_local(source, folder, wanted)
