"""Engines pull from the head what they lack; what comes from a registry is fetched once and taken up where it broke."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dgxspark.serving.plugins.module_utils import _image_sync as image_sync
from ansible_collections.dgxspark.serving.plugins.module_utils import _image_upstream as image_upstream
from ansible_collections.dgxspark.serving.plugins.module_utils import _loopback_registry as loopback_registry
from ansible_collections.dgxspark.serving.plugins.module_utils._image_serve import HeadTask, serve
from ansible_collections.dgxspark.serving.plugins.module_utils._image_store import (
    BytesContent,
    Engine,
    ImageStoreError,
    OfferedImage,
    chain_ids,
    common_layers,
    config_digest,
    note_known_layers,
    offered,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._image_sync import (
    ImageIdentity,
    ImageSyncError,
    Offer,
    check_room,
    image_identity,
    known_layers,
    offer_of,
    site_of,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._image_upstream import Arriving, UpstreamImage
from ansible_collections.dgxspark.serving.plugins.module_utils._loopback_registry import LoopbackRegistry, head_site
from ansible_collections.dgxspark.serving.plugins.module_utils._platform import Platform
from ansible_collections.dgxspark.serving.plugins.module_utils._progress import Progress
from ansible_collections.dgxspark.serving.plugins.module_utils._registry_client import Access, RegistryClient
from ansible_collections.dgxspark.serving.plugins.module_utils._registry_login import Reference
from ansible_collections.dgxspark.serving.plugins.module_utils._remote_image import find_image
from ansible_collections.dgxspark.serving.plugins.module_utils._rendezvous import (
    RendezvousError,
    Source,
    Target,
    tell_failure,
)
from ansible_collections.dgxspark.serving.plugins.module_utils._workloads import CommandResult
from ansible_collections.dgxspark.serving.tests.unit.plugins.classic_store import take_apart
from ansible_collections.dgxspark.serving.tests.unit.plugins.fake_registry import FakeRegistry, layer

CASES = Path(__file__).resolve().parents[2] / "fixtures" / "cases"


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(**outputs: Any) -> Any:
    """A runner of docker commands: outputs by the words after docker, joined by _."""

    def run(argv: Sequence[str]) -> CommandResult:
        name = "_".join(argv[1:3] if argv[1] == "image" else argv[1:2])
        found = outputs.get(name)
        return CommandResult(1, "", "No such image") if found is None else CommandResult(0, found, "")

    return run


@pytest.fixture
def store(tmp_path: Path) -> tuple[Engine, str, bytes]:
    """A classic store with an image of one layer: (engine, id, the layer's tar)."""
    archive = layer({"opt/a": b"a" * 5000, "opt/b": b"b"}, compress=False)
    base = tmp_path / "image" / "overlay2"
    folder = base / "layerdb" / "sha256" / sha256(archive).partition(":")[2]
    folder.mkdir(parents=True)
    take_apart(archive, tmp_path / "overlay2" / "cache1" / "diff", folder / "tar-split.json.gz")
    (folder / "cache-id").write_text("cache1")
    (folder / "size").write_text("5001")
    config = json.dumps({"os": "linux", "architecture": "arm64", "rootfs": {"diff_ids": [sha256(archive)]}}).encode()
    path = base / "imagedb" / "content" / sha256(config).replace(":", "/")
    path.parent.mkdir(parents=True)
    path.write_bytes(config)
    return Engine(str(tmp_path), "overlay2", False), sha256(config), archive


def test_the_classic_store_is_offered_as_a_registry_would(store: tuple[Engine, str, bytes]) -> None:
    engine, image_id, archive = store
    page = site_of(offered(engine, image_id, "linux/arm64"))
    found = page("v2/dgxspark/staging/manifests/image?known=0")
    assert found is not None
    manifest = json.loads(b"".join(found.content.chunks()))
    (described,) = manifest["layers"]
    assert described["size"] == len(archive)
    assert described["digest"] == sha256(archive)
    blob = page(f"v2/dgxspark/staging/blobs/{sha256(archive)}")
    assert blob is not None
    assert b"".join(blob.content.chunks()) == archive
    config = page(f"v2/dgxspark/staging/blobs/{image_id}")
    assert config is not None
    assert sha256(b"".join(config.content.chunks())) == image_id
    assert page("v2/dgxspark/staging/blobs/sha256:other") is None
    # For an engine that has the layer its size is not worth reading all notes.
    known = page("v2/dgxspark/staging/manifests/image?known=1")
    assert known is not None
    assert json.loads(b"".join(known.content.chunks()))["layers"][0]["size"] == 5001


def test_a_store_that_is_not_known_says_which_are(tmp_path: Path) -> None:
    with pytest.raises(ImageStoreError, match=r"Known are the storage driver overlay2 .* this engine has btrfs"):
        offered(Engine(str(tmp_path), "btrfs", False), "sha256:1", "linux/arm64")


def test_containerd_s_store_is_offered_as_it_is(tmp_path: Path) -> None:
    blobs = tmp_path / "containerd" / "daemon" / "io.containerd.content.v1.content" / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes) -> str:
        (blobs / sha256(content).partition(":")[2]).write_bytes(content)
        return sha256(content)

    archive = layer({"opt/a": b"a"})
    config = put(json.dumps({"rootfs": {"diff_ids": ["sha256:plain"]}}).encode())
    manifest = json.dumps({"config": {"digest": config}, "layers": [{"digest": put(archive), "size": len(archive)}]})
    platform = {"os": "linux", "architecture": "arm64"}
    index = {"manifests": [{"digest": "sha256:" + "0" * 64, "platform": {"os": "unknown", "architecture": "unknown"}}]}
    index["manifests"].append({"digest": put(manifest.encode()), "platform": platform})
    engine = Engine(str(tmp_path), "overlayfs", True)
    image_id = put(json.dumps(index).encode())
    image = offered(engine, image_id, "linux/arm64")
    assert (image.config, image.diff_ids, image.layers()) == (config, ("sha256:plain",), [sha256(archive)])
    assert config_digest(engine, image_id, "linux/arm64") == config
    assert image.manifest(0)[1] == manifest.encode()
    found = image.blob(sha256(archive))
    assert found is not None
    assert b"".join(found.chunks(3)) == archive[3:]
    (blobs / sha256(archive).partition(":")[2]).unlink()
    with pytest.raises(ImageStoreError, match="not kept it"):
        offered(engine, image_id, "linux/arm64")
    with pytest.raises(ImageStoreError, match="no complete image"):
        offered(engine, image_id, "linux/amd64")


def test_layers_are_shared_from_the_lowest_on() -> None:
    assert common_layers(["a", "b", "c"], [["a", "x"], ["a", "b", "y"], ["b", "c"]]) == 2
    assert common_layers(["a"], []) == 0
    assert chain_ids(["sha256:1"]) == ["sha256:1"]
    run = answers(image_ls="1\n2\n", image_inspect='["a","b"]\n["a"]\nnull\n')
    assert known_layers(["a", "b", "c"], run) == 2


def test_what_an_engine_has_is_noted_once_and_only_in_a_classic_store(store: tuple[Engine, str, bytes]) -> None:
    engine, _id, _archive = store
    note_known_layers(engine, {"sha256:blob": "sha256:plain"})
    path = Path(engine.root) / "image/overlay2/distribution/diffid-by-digest/sha256/blob"
    assert path.read_text() == "sha256:plain"
    note_known_layers(engine, {"sha256:blob": "sha256:other"})
    assert path.read_text() == "sha256:plain"
    note_known_layers(Engine("/nowhere", "overlay2", False), {"sha256:blob": "sha256:plain"})
    note_known_layers(Engine(engine.root, "overlayfs", True), {"sha256:blob2": "sha256:plain"})
    assert not path.with_name("blob2").exists()


def test_the_engine_says_where_and_how_it_stores() -> None:
    info = {
        "DockerRootDir": "/data",
        "Driver": "overlayfs",
        "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    }
    assert Engine.ask(answers(info=json.dumps(info))) == Engine("/data", "overlayfs", True)
    with pytest.raises(ImageStoreError, match="does not answer"):
        Engine.ask(answers())


def test_case_077_an_image_that_was_built_here_has_an_identity() -> None:
    inspected = (CASES / "077-image-local-build-no-labels-no-digest" / "input.inspect.json").read_text()
    content = json.loads(inspected)
    content[0]["RootFS"] = {"Layers": ["sha256:1"]}
    found = image_identity("vllm-node:latest", answers(image_inspect=json.dumps(content)))
    assert found is not None
    assert (found.id[:12], found.architecture) == ("sha256:77777", "arm64")
    assert image_identity("x", answers()) is None


def test_the_same_image_in_two_stores_is_the_same() -> None:
    classic = ImageIdentity("sha256:config", ("a",), "now", "arm64", 1, "sha256:config")
    other = ImageIdentity("sha256:manifest", ("a",), "now", "arm64", 2, "sha256:config")
    assert classic.same_content(other)
    assert not classic.same_content(ImageIdentity("x", ("a",), "now", "arm64", 1, "sha256:other"))
    assert classic.same_content(ImageIdentity("x", ("a",), "now", "arm64", 1))
    assert not classic.same_content(ImageIdentity("x", ("b",), "now", "arm64", 1))


def test_space_is_looked_at_where_docker_stores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        image_sync.shutil,
        "disk_usage",
        lambda _path: shutil._ntuple_diskusage(10, 5, 10**9),  # type: ignore[attr-defined]
    )
    offer = Offer(ImageIdentity("", ("a", "b"), "", "", 0), (("a", 10**9), ("b", 10**9)), compressed=False)
    assert offer.needed_bytes(known=1) == 2 * 10**9
    with pytest.raises(ImageSyncError, match=rf"needs 2\.0 GB in {tmp_path} .* and 1\.0 GB are free"):
        check_room("x", offer.needed_bytes(1), Engine(str(tmp_path), "overlay2", False))


class Shaky(BytesContent):
    """Ends early so many times."""

    cuts = 2

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        if Shaky.cuts:
            Shaky.cuts -= 1
            yield self.content[start : start + 1000]
            raise ConnectionResetError("cut")
        yield self.content[start:stop]


class OneBlob(OfferedImage):
    body = b"0123456789" * 1000

    def manifest(self, known: int) -> tuple[str, bytes]:
        return "type", json.dumps({"layers": [{"digest": "sha256:blob", "size": 10000}], "known": known}).encode()

    def layers(self) -> list[str]:
        return ["sha256:blob"]

    def blob(self, digest: str) -> BytesContent | None:
        return Shaky(self.body) if digest == "sha256:blob" else None


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        content: bytes = answer.read()
    return content


def test_the_loopback_passes_on_what_the_head_offers_and_takes_up_what_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_registry, "RETRY_EVERY_SECONDS", 0.05)
    Shaky.cuts = 2
    port = free_port()
    with (
        Source("127.0.0.1", port, "secret", {}, site_of(OneBlob("c", ("d",)))),
        LoopbackRegistry(head_site(Target("w", "127.0.0.1", port, "secret"), 3)) as registry,
    ):
        base = f"http://{registry.address}/v2/"
        assert get(base) == b"{}"
        assert json.loads(get(f"{base}dgxspark/staging/manifests/image"))["known"] == 3
        assert get(f"{base}dgxspark/staging/blobs/sha256:blob") == OneBlob.body
        assert registry.bytes_sent == len(OneBlob.body)
        with pytest.raises(urllib.error.HTTPError):
            get(f"{base}dgxspark/staging/blobs/sha256:other")
        # Nothing is given to who does not know the run's token.
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(f"http://127.0.0.1:{port}/v2/dgxspark/staging/manifests/image")


def test_who_tries_tls_is_told_at_once_in_plain_http() -> None:
    with LoopbackRegistry(lambda _path: None) as registry:
        host, port = registry.address.split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(b"\x16\x03\x01\x00\xff hello without an end of line")
            assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_a_head_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_registry, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(loopback_registry, "RETRY_EVERY_SECONDS", 0.05)
    content = loopback_registry.HeadContent(Target("w", "127.0.0.1", free_port(), "t"), "v2/x", 10)
    with pytest.raises(RendezvousError, match="broke and did not come back"):
        list(content.chunks())


def test_workers_hear_that_the_head_has_nothing() -> None:
    port = free_port()
    teller = threading.Thread(target=tell_failure, args=("127.0.0.1", port, "t", ["w"], "no such image"))
    teller.start()
    with pytest.raises(RendezvousError, match="There is nothing to fetch from the head: no such image"):
        Target("w", "127.0.0.1", port, "t").fetch_manifest()
    teller.join(timeout=10)
    assert not teller.is_alive()


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()
    yield fake
    fake.close()


def upstream(registry: FakeRegistry, folder: Path) -> UpstreamImage:
    client = RegistryClient(Reference.parse(f"{registry.name}/img:1"), Access())
    return UpstreamImage.of(client, find_image(client, Platform.parse("linux/arm64")), str(folder))


def an_image(registry: FakeRegistry) -> list[bytes]:
    plain = [layer({f"opt/{number}": bytes([number]) * 300_000}, compress=False) for number in range(2)]
    packed = [layer({f"opt/{number}": bytes([number]) * 300_000}) for number in range(2)]
    registry.image(*packed, rootfs={"diff_ids": [sha256(content) for content in plain]})
    return packed


def test_a_layer_is_fetched_once_for_all_and_only_when_asked_for(registry: FakeRegistry, tmp_path: Path) -> None:
    packed = an_image(registry)
    image = upstream(registry, tmp_path / "spool")
    before = len(registry.requests)
    contents = [image.blob(image.layers()[1]) for _reader in range(3)]
    assert [b"".join(content.chunks()) for content in contents if content] == [packed[1]] * 3
    assert len(registry.requests) == before + 1
    assert image.arrived == len(packed[1])
    image.stop()
    image.forget()
    assert list((tmp_path / "spool").iterdir()) == []


def test_what_an_earlier_run_fetched_is_not_fetched_again(registry: FakeRegistry, tmp_path: Path) -> None:
    packed = an_image(registry)
    (tmp_path / "spool" / "other-image").mkdir(parents=True)
    first = upstream(registry, tmp_path / "spool")
    arriving = first.arriving[first.layers()[0]]
    Path(arriving.path).write_bytes(packed[0])
    Path(first.arriving[first.layers()[1]].path).write_bytes(b"damaged" * 10)
    again = upstream(registry, tmp_path / "spool")
    before = len(registry.requests)
    found = again.blob(again.layers()[0])
    assert found is not None
    assert b"".join(found.chunks()) == packed[0]
    assert len(registry.requests) == before
    # What is not what it should be is noticed by its digest, and fetched anew.
    repaired = again.arriving[again.layers()[1]]
    repaired.fetch(threading.Event(), pause=lambda _seconds: None)
    assert Path(repaired.path).read_bytes() == packed[1]
    assert not (tmp_path / "spool" / "other-image").exists()
    again.stop()


def test_a_registry_that_fails_is_asked_again_and_then_named(registry: FakeRegistry, tmp_path: Path) -> None:
    packed = an_image(registry)
    image = upstream(registry, tmp_path / "spool")
    failures = [500, 500]

    def failing(path: str, _authorization: str) -> tuple[int, dict[str, str], bytes] | None:
        return (failures.pop(), {}, b"") if failures and "/blobs/" in path else None

    registry.answer = failing
    pauses: list[float] = []
    arriving = image.arriving[image.layers()[0]]
    arriving.fetch(threading.Event(), pause=pauses.append)
    assert Path(arriving.path).read_bytes() == packed[0]
    assert pauses == [1, 2]
    registry.answer = lambda path, _authorization: (404, {}, b"") if "/blobs/" in path else None
    absent = Arriving(arriving.client, {"digest": "sha256:" + "0" * 64, "size": 5}, str(tmp_path / "spool"))
    absent.fetch(threading.Event(), pause=pauses.append)
    with pytest.raises(OSError, match="does not have"):
        list(absent.chunks())
    assert image_upstream.TRIES > 2
    image.stop()


def head(**values: Any) -> HeadTask:
    return HeadTask(
        **{"image": "x:1", "name": "h", "workers": (), "address": "127.0.0.1", "port": 1, "token": "t", **values}
    )


INFO = json.dumps({"DockerRootDir": "/nowhere", "Driver": "overlay2"})


def test_a_head_without_the_image_and_without_a_source_says_so() -> None:
    with pytest.raises(ImageSyncError, match="no registry is given"):
        serve(head(), False, Progress(), answers(info=INFO))


def test_check_mode_says_how_much_would_be_pulled(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = an_image(registry)
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"machine": "aarch64"}))
    task = head(source=f"{registry.name}/img:1")
    found = serve(task, True, Progress(), answers(info=INFO, image_ls=""))
    assert (found.changed, found.bytes_received) == (True, sum(map(len, packed)))


def test_another_digest_in_the_registry_is_refused(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    an_image(registry)
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"machine": "aarch64"}))
    with pytest.raises(ImageSyncError, match="in the registry, not sha256:other"):
        serve(head(source=f"{registry.name}/img:1", digest="sha256:other"), True, Progress(), answers(info=INFO))


def test_a_registry_without_the_platform_is_named(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 079: arm/v7 and 386 are no arm64."""
    case = CASES / "079-image-arm64-variant-and-sbsa" / "input.manifest-list.json"
    content = json.loads(case.read_text())
    content["manifests"] = [entry for entry in content["manifests"] if entry["platform"]["architecture"] != "arm64"]
    registry.document(content, "1")
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"machine": "aarch64"}))
    with pytest.raises(
        ImageSyncError, match="is there for linux/386, linux/arm, linux/amd64 only, and this host is aarch64"
    ):
        serve(head(source=f"{registry.name}/img:1"), True, Progress(), answers(info=INFO))


def test_the_offer_travels(store: tuple[Engine, str, bytes]) -> None:
    engine, image_id, archive = store
    identity = ImageIdentity(image_id, (sha256(archive),), "now", "arm64", 1, image_id)
    offer = offer_of(offered(engine, image_id, "linux/arm64"), identity, compressed=False)
    assert Offer.from_json(offer.as_json()) == offer
    assert offer.missing_bytes(0) == 5001
    assert offer.missing_bytes(1) == 0
