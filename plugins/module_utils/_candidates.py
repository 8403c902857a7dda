# Copyright (c) 2026, dgxspark.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which of a preset's candidate images is taken, and why not the others.

PRIVATE to this collection. A candidate is a dictionary: C(image) (a reference), C(engine), C(reason), C(digest) (of the manifest
or index in its registry, empty when it is not known), C(local) (built on the head, no registry has it), C(backends) (with which
it can serve: C(ray), C(mp)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.serving.plugins.module_utils._backend import AUTO, MP, RAY
from ansible_collections.dgxspark.serving.plugins.module_utils._findings import ERROR, WARNING
from ansible_collections.dgxspark.serving.plugins.module_utils._image_name import PINNED_REFERENCE, local_name
from ansible_collections.dgxspark.serving.plugins.module_utils._image_probe import Contents
from ansible_collections.dgxspark.serving.plugins.module_utils._image_verdict import judge_package

# Engines that role vllm_serve can run.
SERVED_ENGINES = ("vllm", "sglang")


@dataclass
class Choice:
    """image: name of the chosen candidate on the hosts, empty when none fits; rejected: image and the reason, a line each.

    backend: with which it serves. pull: empty for an image that the head has; otherwise source (reference pinned by digest) and
    digest. size: bytes to pull. pinned: the digest or id that stands for it in this run. others: names on the hosts of those after it
    that may serve, too; absent ones are not looked at yet.
    """

    image: str = ""
    image_id: str = ""
    engine: str = ""
    engine_version: str = ""
    backend: str = ""
    reason: str = ""
    pinned: str = ""
    pull: dict[str, str] = field(default_factory=dict)
    size: int = 0
    versions: dict[str, Any] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def lines(self) -> list[str]:
        """For a terminal: the chosen image, then each rejection with its reason."""
        lines = []
        if self.image:
            where = f", to be pulled: {self.size / 1000**3:.1f} GB" if self.pull else ""
            lines.append(f"chosen {self.image}: {self.engine} {self.engine_version} ({self.reason}{where})")
        for entry in self.rejected:
            lines.append(f"rejected {entry['image']}: {entry['reason']}")
            if entry["remedy"]:
                lines.append(f"  -> {entry['remedy']}")
        lines += [f"warning: {entry['message']} [{entry['id']}]" for entry in self.warnings]
        return lines


@dataclass(frozen=True)
class Wish:
    """What the user wants beside the preset's order. remembered: {digest, id} of what earlier runs took, by candidate.

    engines: which version an engine must have, by engine: a requirement on one engine says nothing about images of another.
    tried: why an image (by its name on the hosts) did not serve, of those that this run has tried already.
    """

    backend: str = RAY
    allow_unpinned: bool = False
    prefer_local: bool = False
    remembered: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    engines: Mapping[str, Any] = field(default_factory=dict)
    tried: Mapping[str, str] = field(default_factory=dict)


def digest_of(candidate: Mapping[str, Any]) -> str:
    """The digest that the candidate carries, in its reference or beside it."""
    found = PINNED_REFERENCE.fullmatch(str(candidate["image"]))
    return str(candidate.get("digest") or "") or (found["digest"] if found else "")


def pull_reference(candidate: Mapping[str, Any], wish: Wish) -> str:
    """What to ask a registry for: pinned by the digest of the candidate, or of an earlier run; else the tag."""
    name = str(candidate["image"])
    digest = digest_of(candidate) or str((wish.remembered.get(name) or {}).get("digest") or "")
    if not digest:
        return name
    bare = name.partition("@")[0]
    folder, slash, last = bare.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@{digest}"


# Asks a registry about a reference: (entry of registry_probe, whether it is suitable).
AskRemote = Callable[[str], tuple[Mapping[str, Any], bool]]


def _rejection(image: str, reason: str, remedy: str = "", finding_id: str = "") -> dict[str, Any]:
    return {"image": image, "reason": reason, "remedy": remedy, "id": finding_id}


class _Rejected(Exception):
    def __init__(self, reason: str, remedy: str = "", finding_id: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.finding_id = reason, remedy, finding_id


def choose(
    candidates: Sequence[Mapping[str, Any]],
    probed: Sequence[Mapping[str, Any]],
    suitable: Sequence[str],
    head: str,
    wish: Wish = Wish(),
    ask_remote: AskRemote | None = None,
) -> Choice:
    """The first candidate that meets every requirement, in the order of the preset.

    candidates: the preset's; probed and suitable: results of registry_probe for the names of the same images on host C(head);
    ask_remote: for those that are not there, until one is chosen.
    """
    choice = Choice()
    by_name = {str(entry["image"]): entry for entry in probed}
    ordered = list(candidates)
    if wish.prefer_local:
        ordered.sort(key=lambda candidate: not by_name[local_name(str(candidate["image"]))].get("present"))
    for candidate in ordered:
        name = str(candidate["image"])
        entry = by_name[local_name(name)]
        is_suitable, reference = str(entry["image"]) in suitable, ""
        try:
            _check_tried(candidate, wish)
            if not entry.get("present"):
                if choice.image:
                    if _may_be_pulled(candidate, wish):
                        choice.others.append(local_name(name))
                    continue
                entry, is_suitable, reference = _from_registry(candidate, head, wish, ask_remote)
            else:
                _check_digest(candidate, entry, head, wish)
            backend = _judge(candidate, entry, is_suitable, wish)
        except _Rejected as rejected:
            choice.rejected.append(_rejection(name, rejected.reason, rejected.remedy, rejected.finding_id))
            continue
        if choice.image:
            choice.others.append(local_name(name))
        else:
            _take(choice, candidate, entry, backend, reference, wish)
    return choice


def _may_be_pulled(candidate: Mapping[str, Any], wish: Wish) -> bool:
    return not candidate.get("local") and ("@" in pull_reference(candidate, wish) or wish.allow_unpinned)


def _check_tried(candidate: Mapping[str, Any], wish: Wish) -> None:
    reason = wish.tried.get(local_name(str(candidate["image"])))
    if reason:
        raise _Rejected(f"did not serve in this run: {reason}", "", "IMAGE.DID_NOT_SERVE")


def _from_registry(
    candidate: Mapping[str, Any], head: str, wish: Wish, ask_remote: AskRemote | None
) -> tuple[Mapping[str, Any], bool, str]:
    name = str(candidate["image"])
    if candidate.get("local"):
        raise _Rejected(f"is not on {head}", "", "IMAGE.ABSENT")
    reference = pull_reference(candidate, wish)
    if not _may_be_pulled(candidate, wish):
        raise _Rejected(
            f"is not on {head}, and its digest is not known: a tag alone may be another image tomorrow",
            f"Give its digest (candidates: digest), set spark_allow_unpinned: true, or on {head}: docker pull {name}",
            "IMAGE.UNPINNED",
        )
    if ask_remote is None:
        raise _Rejected(f"is not on {head}", f"On {head}: docker pull {reference}", "IMAGE.ABSENT")
    entry, is_suitable = ask_remote(reference)
    return entry, is_suitable, reference


def _check_digest(candidate: Mapping[str, Any], entry: Mapping[str, Any], head: str, wish: Wish) -> None:
    digest = digest_of(candidate)
    if not digest or _has_digest(entry, digest):
        return
    # One that this collection pulled may be known to the engine by its id only.
    known = wish.remembered.get(str(candidate["image"])) or {}
    if known.get("digest") == digest and known.get("id") == entry.get("id"):
        return
    raise _Rejected(
        f"is on {head} with another digest than the preset's {digest}",
        f"On {head}: docker pull {pull_reference(candidate, wish)} && docker tag {pull_reference(candidate, wish)} "
        f"{local_name(str(candidate['image']))}",
        "IMAGE.DIGEST",
    )


def _judge(candidate: Mapping[str, Any], entry: Mapping[str, Any], is_suitable: bool, wish: Wish) -> str:
    """The backend with which it serves. Raises _Rejected."""
    errors = [finding for finding in entry["findings"] if finding["severity"] == ERROR]
    errors += [finding for finding in _engine_version(entry, wish) if finding["severity"] == ERROR]
    if not is_suitable or errors:
        raise _Rejected(
            "; ".join(finding["message"].rstrip(".") for finding in errors)
            or "registry_probe does not find it suitable",
            next((finding["remedy"] for finding in errors if finding["remedy"]), ""),
            errors[0]["id"] if errors else "",
        )
    if str(entry.get("engine")) not in SERVED_ENGINES:
        raise _Rejected(
            f"has engine {entry.get('engine')}; this version serves with {', '.join(SERVED_ENGINES)}",
            "",
            "IMAGE.ENGINE",
        )
    return _backend(candidate, entry, wish)


def _engine_version(entry: Mapping[str, Any], wish: Wish) -> list[dict[str, Any]]:
    engine = str(entry.get("engine") or "")
    if engine not in wish.engines:
        return []
    version = entry.get("engine_version") or None
    contents = Contents(engine=engine, engine_version=str(version or ""), versions={engine: version})
    found = judge_package(str(entry["image"]), contents, engine, wish.engines[engine], ERROR)
    return [found.as_dict()] if found else []


def requirements_of_engines(requirements: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """C(requirements) of a preset without what is asked of engines, and that, by engine."""
    require = dict(requirements.get("require") or {})
    engines = {name: require.pop(name) for name in SERVED_ENGINES if name in require}
    return {**requirements, "require": require}, engines


def _backend(candidate: Mapping[str, Any], entry: Mapping[str, Any], wish: Wish) -> str:
    versions = entry.get("versions")
    has_ray = versions is None or bool(versions.get("ray"))
    able = [str(name) for name in candidate.get("backends") or (RAY, MP)]
    if entry.get("engine") == "sglang":
        # It brings its ranks together by itself.
        able = [name for name in able if name == MP]
    if not has_ray:
        able = [name for name in able if name != RAY]
    if wish.backend != AUTO:
        if wish.backend in able:
            return wish.backend
        raise _Rejected(
            f"cannot serve with the backend {wish.backend}, only with {', '.join(able) or 'none'}",
            f"Use a candidate that can, or set spark_backend: {AUTO}.",
            "IMAGE.BACKEND",
        )
    if not able:
        raise _Rejected("has no Ray, and its candidate allows nothing else", "Add mp to its backends.", "IMAGE.BACKEND")
    return RAY if RAY in able else able[0]


def _take(
    choice: Choice, candidate: Mapping[str, Any], entry: Mapping[str, Any], backend: str, reference: str, wish: Wish
) -> None:
    choice.image, choice.image_id = local_name(str(candidate["image"])), str(entry["id"])
    choice.engine, choice.engine_version = str(entry["engine"]), str(entry["engine_version"])
    choice.backend = backend
    choice.reason = str(candidate.get("reason") or "first suitable candidate")
    choice.pinned = digest_of(candidate) or choice.image_id
    choice.versions = dict(entry.get("versions") or {})
    found = [*entry["findings"], *_engine_version(entry, wish)]
    choice.warnings = [finding for finding in found if finding["severity"] == WARNING]
    if reference:
        # A tag becomes the digest that it means now: all hosts get that, whatever happens to the tag meanwhile.
        digest = str((entry.get("digests") or [""])[0]).rpartition("@")[2]
        repository = str(reference).partition("@")[0]
        folder, slash, last = repository.rpartition("/")
        choice.pinned = digest
        choice.pull = {"source": f"{folder}{slash}{last.partition(':')[0]}@{digest}", "digest": digest}
        choice.size = int(entry.get("size") or 0)


def _has_digest(entry: Mapping[str, Any], digest: str) -> bool:
    return any(
        str(known).endswith(digest)
        for known in (entry.get("digests") or (), entry.get("id") or "")
        for known in _as_list(known)
    )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
