# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A client of OCI registries that reads: manifests, configurations, layers.

PRIVATE to this collection. Whatever a registry does is either an answer that was verified or a RegistryError.
"""

from __future__ import annotations

import email.utils
import glob
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.dgxspark.serving.plugins.module_utils._registry_login import Credentials, Reference

# requests is imported by the functions that need it; the module has found out before whether it is there (_host_python).
if TYPE_CHECKING:
    import requests

# Media types of manifests and of lists of them (OCI image specification 1.1, Docker image manifest version 2, schema 2).
_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# Registries take manifests up to 4 MiB (OCI distribution specification); configurations are smaller.
_DOCUMENT_LIMIT = 8 * 1024**2
# Seconds without a byte, after which a registry is given up.
_SILENCE_SECONDS = 30
# A registry that asks for patience gets it so often and so long.
_RETRIES = 3
_LONGEST_WAIT_SECONDS = 30
_CERTIFICATES = "/etc/docker/certs.d"
_CHALLENGE_PART = re.compile(r'(\w+)="([^"]*)"')


class RegistryError(Exception):
    """What a registry did instead of answering. id: of the finding that comes of it."""

    def __init__(self, id: str, message: str, remedy: str = "", evidence: str = "") -> None:

        super().__init__(message)
        self.id, self.message, self.remedy, self.evidence = id, message, remedy, evidence


@dataclass(frozen=True)
class Access:
    """How to reach a registry. ca_path: of authorities beside the system's; plain_http: no TLS."""

    credentials: Credentials = field(default_factory=Credentials)
    ca_path: str = ""
    plain_http: bool = False
    # When reading must have ended, as time.monotonic() counts.
    deadline: float = float("inf")


@dataclass(frozen=True)
class Document:
    content: dict[str, Any]
    media_type: str
    digest: str
    body: bytes = b""

    @property
    def is_index(self) -> bool:
        return self.media_type in _INDEX_TYPES or ("manifests" in self.content and "layers" not in self.content)


class Blob:
    """The bytes of a blob, counted and compared with what its descriptor says."""

    def __init__(self, answer: requests.Response, what: str, size: int, digest: str, count: Callable[[int], None]):
        self._answer, self._what, self._count = answer, what, count
        self._size, self._digest = size, digest
        self._read, self._sum = 0, hashlib.sha256()
        self.deadline = float("inf")

    def go_on(self, offset: int, digest: Any) -> None:
        """The answer begins at C(offset); C(digest) is that of what is before, as an object of hashlib."""
        self._read, self._sum = offset, digest.copy()

    def read(self, size: int) -> bytes:
        """Raises RegistryError when it ends early or is not what was promised."""
        if time.monotonic() > self.deadline:
            raise RegistryError(
                "REMOTE.TIMEOUT", f"The registry was still sending {self._what} when the time was up.", "Raise timeout."
            )
        try:
            part = self._answer.raw.read(min(size, self._size - self._read + 1))
        except Exception as error:
            # urllib3's own errors, which requests does not wrap here.
            if "timed out" in str(error):
                raise _silent(self._what) from error
            raise _truncated(self._what, self._read, self._size) from error
        self._read += len(part)
        self._count(len(part))
        self._sum.update(part)
        if not part and self._read < self._size:
            raise _truncated(self._what, self._read, self._size)
        if self._read >= self._size and (self._read > self._size or f"sha256:{self._sum.hexdigest()}" != self._digest):
            raise _wrong_digest(self._what, self._digest)
        return bytes(part)

    def close(self) -> None:
        self._answer.close()


class RegistryClient:
    """One repository of a registry. bytes_read: all that it sent."""

    def __init__(self, reference: Reference, access: Access) -> None:
        import requests

        self.reference, self.access = reference, access
        self.session = requests.Session()
        self.bytes_read = 0
        self._authorization = ""
        self._scheme = "http" if access.plain_http else "https"

    def close(self) -> None:
        self.session.close()

    def manifest(self, digest: str = "") -> Document:
        """The manifest or index that the reference names, or the one with the digest."""
        name = digest or self.reference.digest or self.reference.tag
        what = f"the manifest {name} of {self.reference.name}"
        answer = self._get(f"manifests/{name}", what, ", ".join((*_INDEX_TYPES, *_MANIFEST_TYPES)))
        body = self._body(answer, what)
        found = f"sha256:{hashlib.sha256(body).hexdigest()}"
        promised = name if name.startswith("sha256:") else answer.headers.get("Docker-Content-Digest", found)
        if found != promised:
            raise _wrong_digest(what, promised)
        content = _parsed(body, what)
        media_type = content.get("mediaType") or answer.headers.get("Content-Type", "").partition(";")[0]
        return Document(content, str(media_type), found, body)

    def config(self, descriptor: dict[str, Any]) -> Document:
        what = f"the configuration of {self.reference.name}"
        digest = _digest_of(descriptor, what)
        body = self._body(self._get(f"blobs/{digest}", what), what)
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
            raise _wrong_digest(what, digest)
        return Document(_parsed(body, what), "", digest, body)

    def open(self, descriptor: dict[str, Any], offset: int = 0, before: Any = None) -> Blob:
        """A blob, or the rest of it from C(offset) on; C(before): hashlib object that has seen what is before."""
        digest = _digest_of(descriptor, "a layer")
        what = f"layer {digest[:19]} of {self.reference.name}"
        size = descriptor.get("size")
        if not isinstance(size, int) or size < 0:
            raise RegistryError("REMOTE.MALFORMED", f"The manifest states no size for {what}.")
        answer = self._get(f"blobs/{digest}", what, offset=offset)
        blob = Blob(answer, what, size, digest, self._count)
        blob.deadline = self.access.deadline
        if offset and answer.status_code == 206:
            blob.go_on(offset, before)
        elif offset:
            # A server that knows no ranges sends it from the start.
            skipped = 0
            while skipped < offset:
                skipped += len(blob.read(min(1 << 20, offset - skipped)))
        return blob

    def _count(self, size: int) -> None:
        self.bytes_read += size

    def _body(self, answer: requests.Response, what: str) -> bytes:
        import requests

        parts, size = [], 0
        try:
            for part in answer.iter_content(1 << 16):
                parts.append(part)
                size += len(part)
                if size > _DOCUMENT_LIMIT:
                    raise RegistryError("REMOTE.MALFORMED", f"The registry sends more than 8 MiB for {what}.")
        except requests.RequestException as error:
            raise _truncated(what, size, int(answer.headers.get("Content-Length") or 0)) from error
        finally:
            answer.close()
        self._count(size)
        stated = answer.headers.get("Content-Length", "")
        if stated.isdigit() and "Content-Encoding" not in answer.headers and size < int(stated):
            raise _truncated(what, size, int(stated))
        return b"".join(parts)

    def _get(self, path: str, what: str, accept: str = "*/*", offset: int = 0) -> requests.Response:
        """The answer to a request, after login and patience. Raises RegistryError."""
        challenged = False
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        for attempt in range(_RETRIES + 2):
            url = f"{self._scheme}://{self.reference.host}/v2/{self.reference.repository}/{path}"
            answer = self._send(url, headers, self._authorization)
            if answer.status_code == 401 and not challenged:
                challenged = True
                self._authorization = self._login(answer)
                answer.close()
            elif answer.status_code in (429, 503) and attempt < _RETRIES:
                answer.close()
                self._wait(answer, what)
            else:
                return self._checked(answer, what)
        raise RegistryError("REMOTE.RATE_LIMITED", f"The registry refuses {what} again and again.")

    def _send(self, url: str, headers: dict[str, str], authorization: str) -> requests.Response:
        import requests

        try:
            return self.session.get(
                url,
                headers=headers,
                # Also with an empty value: otherwise requests takes what ~/.netrc says.
                auth=lambda request: _authorized(request, authorization),
                stream=True,
                timeout=_SILENCE_SECONDS,
                verify=self._authorities(),
            )
        except requests.exceptions.SSLError as error:
            if "CERTIFICATE" not in str(error) and self._may_be_plain():
                return self._send(url.replace("https://", "http://", 1), headers, authorization)
            raise RegistryError(
                "REMOTE.TLS",
                f"The certificate of registry {self.reference.domain} is not accepted.",
                "Name its authority with registry_ca_path, or put it to "
                f"{_CERTIFICATES}/{self.reference.domain}/ca.crt, where Docker looks as well.",
                _innermost(error),
            ) from error
        except requests.exceptions.Timeout as error:
            raise _silent(f"registry {self.reference.domain}") from error
        except (requests.RequestException, OSError) as error:
            if self._may_be_plain():
                return self._send(url.replace("https://", "http://", 1), headers, authorization)
            raise RegistryError(
                "REMOTE.UNREACHABLE",
                f"Registry {self.reference.domain} cannot be reached.",
                "Check the name, the network and the proxy (https_proxy, no_proxy).",
                _innermost(error),
            ) from error

    def _may_be_plain(self) -> bool:
        """On this host a registry may do without TLS, as for Docker."""
        if self._scheme == "https" and self.reference.is_loopback and not self.access.ca_path:
            self._scheme = "http"
            return True
        return False

    def _authorities(self) -> str | bool:
        """The file with the certificates to accept, given or placed for Docker."""
        if self.access.ca_path:
            return self.access.ca_path
        placed = sorted(glob.glob(os.path.join(_CERTIFICATES, glob.escape(self.reference.domain), "*.crt")))
        return placed[0] if placed else True

    def _wait(self, answer: requests.Response, what: str) -> None:
        seconds = _seconds(answer.headers.get("Retry-After", ""))
        if seconds > _LONGEST_WAIT_SECONDS or time.monotonic() + seconds > self.access.deadline:
            raise RegistryError(
                "REMOTE.RATE_LIMITED",
                f"Registry {self.reference.domain} answers {what} with {answer.status_code}: too many requests. "
                f"It wants to be asked again in {seconds:.0f} s.",
                "Try again then, or log in (docker login): known users may ask more often.",
                answer.headers.get("Retry-After", ""),
            )
        time.sleep(seconds)

    def _login(self, answer: requests.Response) -> str:
        """The value of the header Authorization that the registry asks for."""
        challenge = answer.headers.get("WWW-Authenticate", "")
        scheme, _blank, rest = challenge.partition(" ")
        credentials = self.access.credentials
        if scheme.lower() == "basic":
            return credentials.basic if credentials.username else ""
        if scheme.lower() != "bearer":
            return ""
        parts = dict(_CHALLENGE_PART.findall(rest))
        realm = parts.get("realm", "")
        if not realm.startswith("https://") and not (realm.startswith("http://") and self._scheme == "http"):
            raise RegistryError(
                "REMOTE.UNAUTHORIZED",
                f"Registry {self.reference.domain} asks for a login at {realm or 'no address'}: a password is not sent there.",
            )
        return f"Bearer {self._token(realm, parts)}"

    def _token(self, realm: str, parts: dict[str, str]) -> str:
        import requests

        scope = parts.get("scope") or f"repository:{self.reference.repository}:pull"
        asked = {"service": parts.get("service", ""), "scope": scope}
        credentials, timeout = self.access.credentials, _SILENCE_SECONDS
        try:
            if credentials.token:
                form = {
                    **asked,
                    "grant_type": "refresh_token",
                    "refresh_token": credentials.token,
                    "client_id": "dgxspark",
                }
                answer = self.session.post(realm, data=form, timeout=timeout, verify=self._authorities())
            else:
                basic = credentials.basic if credentials else ""
                answer = self.session.get(
                    realm,
                    params=asked,
                    auth=lambda request: _authorized(request, basic),
                    timeout=timeout,
                    verify=self._authorities(),
                )
        except requests.RequestException as error:
            raise RegistryError(
                "REMOTE.UNREACHABLE",
                f"The server {realm} that gives tokens for registry {self.reference.domain} cannot be reached.",
                evidence=_innermost(error),
            ) from error
        content = self._checked(answer, f"a token for {self.reference.name}").content
        body = _parsed(content, "a token")
        token = body.get("token") or body.get("access_token")
        if not isinstance(token, str):
            raise RegistryError("REMOTE.MALFORMED", f"{realm} answers without a token.")
        return token

    def _checked(self, answer: requests.Response, what: str) -> requests.Response:
        status = answer.status_code
        if status in (200, 206):
            return answer
        answer.close()
        domain = self.reference.domain
        if status in (401, 403):
            known = bool(self.access.credentials)
            raise RegistryError(
                "REMOTE.UNAUTHORIZED",
                f"Registry {domain} does not give {what}: "
                + (f"it does not let this user in ({status})." if known else f"it wants a login ({status})."),
                f"Log in on the host (docker login {domain}), or set registry_username and registry_password. "
                "Some registries answer so for what does not exist.",
            )
        if status == 404:
            raise RegistryError(
                "IMAGE.ABSENT",
                f"Registry {domain} does not have {what}.",
                "Check name and tag.",
            )
        if status == 429:
            raise RegistryError(
                "REMOTE.RATE_LIMITED", f"Registry {domain} still refuses {what} after {_RETRIES} waits."
            )
        raise RegistryError("REMOTE.SERVER_ERROR", f"Registry {domain} answers {what} with status {status}.")


def _authorized(request: Any, authorization: str) -> Any:
    if authorization:
        request.headers["Authorization"] = authorization
    return request


def _seconds(retry_after: str) -> float:
    """Seconds or a date; one second when it does not say."""
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (TypeError, ValueError):
        return 1.0


def _parsed(body: bytes, what: str) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RegistryError(
            "REMOTE.MALFORMED", f"The registry sends no JSON for {what}.", evidence=str(error)
        ) from error
    if not isinstance(content, dict):
        raise RegistryError("REMOTE.MALFORMED", f"The registry sends no dictionary for {what}.")
    return content


def _digest_of(descriptor: dict[str, Any], what: str) -> str:
    digest = descriptor.get("digest")
    if not isinstance(digest, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise RegistryError("REMOTE.MALFORMED", f"The manifest names {what} by {digest!r}, which is no digest.")
    return digest


def _truncated(what: str, read: int, size: int) -> RegistryError:
    return RegistryError(
        "REMOTE.TRUNCATED",
        f"The registry ended the connection after {read} of {size} bytes of {what}.",
        "Try again; if it stays so, the registry or a proxy before it is damaged.",
    )


def _wrong_digest(what: str, promised: str) -> RegistryError:
    return RegistryError(
        "REMOTE.WRONG_DIGEST",
        f"What the registry sends for {what} is not what has the digest {promised}.",
        "Do not use the image: the registry, or a proxy before it, has damaged or replaced it.",
    )


def _silent(what: str) -> RegistryError:
    return RegistryError(
        "REMOTE.TIMEOUT",
        f"No byte of {what} came for {_SILENCE_SECONDS} s.",
        "Try again later.",
    )


def _innermost(error: BaseException) -> str:
    """The reason without the chain of objects that requests puts around it."""
    while error.__context__ or error.__cause__:
        error = error.__cause__ or error.__context__ or error
    return str(error)
