# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Python libraries that role host_setup put on the host, and the import of the Docker SDK with them.

PRIVATE to this collection.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

if TYPE_CHECKING:
    from docker import APIClient

# Where role host_setup unpacks the libraries: a folder of our own, as a Spark's Python is externally managed (PEP 668).
HOST_LIBRARY_FOLDER = "/opt/dgxspark/python"

if os.path.isdir(HOST_LIBRARY_FOLDER) and HOST_LIBRARY_FOLDER not in sys.path:
    # Last: what the distribution brought goes first.
    sys.path.append(HOST_LIBRARY_FOLDER)

_LIBRARIES_WAY_OUT = f"This brings it to {HOST_LIBRARY_FOLDER}: ansible-playbook dgxspark.serving.host_setup -i INVENTORY --ask-become-pass"
DEFAULT_DOCKER_HOST = "unix:///var/run/docker.sock"
# An engine that does not answer a ping for so long is reported as hanging. Ours: 20 x the 3 s of a loaded engine.
ENGINE_TIMEOUT_SECONDS = 60


class EngineUnavailable(Exception):
    """The Docker Engine could not be asked; the message says why and what to do."""


def docker_argument_spec() -> dict[str, Any]:
    return {"docker_host": {"type": "str", "default": DEFAULT_DOCKER_HOST}}


def import_error(library: str) -> str | None:
    """Why a library cannot be imported on this host, or None.

    Libraries are imported by the functions that need them: most modules need none, and the import takes a tenth of a second.
    """
    try:
        importlib.import_module(library)
    except ImportError:
        return traceback.format_exc()
    return None


def require_docker_sdk(module: AnsibleModule) -> None:
    """Fail with the way out when the Docker SDK for Python is missing on the host."""
    _require(module, "docker", "to talk to the Docker Engine")


def require_requests(module: AnsibleModule, purpose: str) -> None:
    """Fail with the way out when the library requests is missing on the host."""
    _require(module, "requests", purpose)


def _require(module: AnsibleModule, library: str, purpose: str) -> None:
    error = import_error(library)
    if error:
        module.fail_json(msg=missing_required_lib(library, reason=f"{purpose}. {_LIBRARIES_WAY_OUT}"), exception=error)


def connect_engine(docker_host: str = DEFAULT_DOCKER_HOST) -> APIClient:
    """A connected client of the Docker Engine.

    Raises EngineUnavailable when the engine does not answer or the user may not talk to it.
    """
    import docker
    import requests

    socket_path = docker_host.removeprefix("unix://")
    try:
        client = docker.APIClient(base_url=docker_host, version="auto", timeout=ENGINE_TIMEOUT_SECONDS)
        client.ping()
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        if docker_host.startswith("unix://") and os.path.exists(socket_path) and not os.access(socket_path, os.W_OK):
            raise EngineUnavailable(
                f"No right to talk to the Docker Engine at {docker_host}: this user may not write to {socket_path}. "
                "Use become (ansible -b) or put the user into group docker."
            ) from error
        raise EngineUnavailable(
            f"The Docker Engine at {docker_host} does not answer: {error}. "
            "Start it (systemctl start docker) or set docker_host."
        ) from error
    return client


def is_engine_error(error: Exception) -> bool:
    """Whether the engine or the way to it is to blame."""
    import docker
    import requests

    return isinstance(error, (docker.errors.DockerException, requests.exceptions.RequestException))


def engine_error() -> type[Exception]:
    """What the Docker SDK raises when the engine refuses something."""
    import docker

    error: type[Exception] = docker.errors.APIError
    return error


def look_up(inspect: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any] | None:
    """What C(inspect) of a client says about C(name); None when the engine has no such object."""
    import docker

    try:
        return inspect(name)
    except docker.errors.NotFound:
        return None
