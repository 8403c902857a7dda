# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""References of images, and with what a registry of images lets a user in.

PRIVATE to this collection.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

# What a reference without a host means (distribution/reference), the host that answers for it, and its name in the
# configuration of Docker.
_DEFAULT_DOMAIN = "docker.io"
_DEFAULT_HOST = f"registry-1.{_DEFAULT_DOMAIN}"
_DEFAULT_CONFIG_NAME = f"https://index.{_DEFAULT_DOMAIN}/v1/"
_REFERENCE = re.compile(
    r"(?:(?P<domain>[A-Za-z0-9.-]*[.:][A-Za-z0-9.:\[\]-]*|localhost)/)?"
    r"(?P<path>[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|\[::1\]")
# A helper asks a keyring of the host; it may have to be unlocked, for which nobody is there.
_HELPER_SECONDS = 10


class BadReference(ValueError):
    """The text is no reference of an image in a registry."""


@dataclass(frozen=True)
class Reference:
    """domain: as written in references, the default one when none is."""

    text: str
    domain: str
    repository: str
    tag: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        found = _REFERENCE.fullmatch(text)
        if not found or re.fullmatch(r"[0-9a-f]{64}", text):
            raise BadReference(f"{text!r} is no reference of an image in a registry; write it like host:5000/name:tag")
        domain, repository = found["domain"] or _DEFAULT_DOMAIN, found["path"]
        if domain == _DEFAULT_DOMAIN and "/" not in repository:
            repository = f"library/{repository}"
        return cls(
            text, domain, repository, found["tag"] or ("" if found["digest"] else "latest"), found["digest"] or ""
        )

    @property
    def host(self) -> str:
        return _DEFAULT_HOST if self.domain == _DEFAULT_DOMAIN else self.domain

    @property
    def is_loopback(self) -> bool:
        return bool(_LOOPBACK.fullmatch(re.sub(r":\d+$", "", self.domain)))

    @property
    def name(self) -> str:
        """Without tag and digest."""
        return f"{self.domain}/{self.repository}"


@dataclass(frozen=True)
class Credentials:
    """token: an identity token, to be exchanged for one of access; password and token are never part of a message."""

    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.username or self.token)

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


class CredentialsError(Exception):
    """The configuration of Docker or its helper cannot be used; the message says why."""


def docker_config_path(environment: Mapping[str, str]) -> str:
    folder = environment.get("DOCKER_CONFIG") or os.path.join(os.path.expanduser("~"), ".docker")
    return os.path.join(folder, "config.json")


def configured_credentials(path: str, domain: str) -> Credentials:
    """What C(docker login) has stored for the registry; none when it has not. Raises CredentialsError."""
    try:
        with open(path, encoding="utf-8") as handle:
            config = json.load(handle)
    except (FileNotFoundError, PermissionError):
        return Credentials()
    except (OSError, ValueError) as error:
        raise CredentialsError(f"the configuration of Docker, {path}, cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CredentialsError(f"the configuration of Docker, {path}, holds no dictionary")
    names = (_DEFAULT_CONFIG_NAME, domain) if domain == _DEFAULT_DOMAIN else (domain,)
    helpers = config.get("credHelpers") or {}
    for name in names:
        helper = helpers.get(name) or config.get("credsStore")
        if helper:
            return _ask_helper(str(helper), name)
    for key, entry in (config.get("auths") or {}).items():
        if isinstance(entry, dict) and (key in names or _host_of(key) in names):
            return _credentials_of(entry, path)
    return Credentials()


def _host_of(key: str) -> str:
    """Old configurations have URLs as keys."""
    return urlsplit(key).netloc if "://" in key else key.partition("/")[0]


def _credentials_of(entry: dict[str, Any], path: str) -> Credentials:
    try:
        decoded = base64.b64decode(str(entry.get("auth") or "")).decode()
    except ValueError as error:
        raise CredentialsError(f"{path} has an entry whose auth is not encoded as Docker does") from error
    username, _colon, password = decoded.partition(":")
    return Credentials(
        str(entry.get("username") or username),
        str(entry.get("password") or password).rstrip("\0"),
        str(entry.get("identitytoken") or ""),
    )


def _ask_helper(helper: str, name: str) -> Credentials:
    program = f"docker-credential-{helper}"
    if not re.fullmatch(r"[\w.-]+", helper):
        raise CredentialsError(f"the configuration of Docker names a helper {helper!r}")
    try:
        # The control node uses it, too: there is no AnsibleModule.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            [program, "get"], input=name, capture_output=True, text=True, timeout=_HELPER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CredentialsError(
            f"{program}, which the configuration of Docker names, cannot be asked: {error}"
        ) from error
    if done.returncode:
        # It has nothing for this registry, which may need nothing.
        return Credentials()
    try:
        answer = json.loads(done.stdout)
        username, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise CredentialsError(f"{program} gives no answer that can be read") from error
    return Credentials(token=secret) if username == "<token>" else Credentials(username, secret)
