"""All hosts have the same image and the same complete model, and nothing of the copy is left."""

from __future__ import annotations

from typing import Any

import testinfra

testinfra_hosts = ["docker://spark-worker"]
MODEL = "/srv/models/qwen35-tiny"


def head() -> Any:
    return testinfra.get_host("docker://spark-head")


def test_the_image_is_the_head_s(host: Any) -> None:
    command = "docker image inspect -f '{{.Id}} {{.RootFS.Layers}}' vllm-node:0.32"
    assert host.run(command).rc == 0
    assert host.run(command).stdout == head().run(command).stdout


def test_the_model_is_the_head_s(host: Any) -> None:
    command = f"cd {MODEL} && find . -type f -not -path './.partial/*' | sort | xargs sha256sum"
    assert "safetensors" in host.run(command).stdout
    assert host.run(command).stdout == head().run(command).stdout


def test_the_model_is_readable_by_any_user_of_a_container(host: Any) -> None:
    assert host.run(f"find {MODEL} -type f ! -perm 0644").stdout == ""


def test_no_server_of_the_copy_is_left() -> None:
    listening = head().run("ss -Hltn").stdout
    assert ":20110 " not in listening
    assert ":20111 " not in listening
    assert ":20113 " not in listening
    assert head().run("pgrep -a rsync").stdout == ""


def test_nothing_of_the_copy_is_left(host: Any) -> None:
    for which in (host, head()):
        assert which.run("find /run/dgxspark/staging /root/.ansible_async -type f").stdout == ""
        assert which.run("find /srv/models -name .partial -o -name .incoming").stdout == ""
        assert "127.0.0.1:" not in which.run("docker image ls").stdout
