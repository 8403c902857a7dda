"""One host and four hosts (make test-full PART=sizes)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator

import pytest
import yaml
from conftest import CHECKOUT, INVENTORY, answers, lab, nothing_of_ours_runs, on, run_playbook

FOUR = ("-i", ".lab/more_hosts.yml")


@pytest.fixture(scope="module", autouse=True)
def start_state() -> Iterator[None]:
    lab("reset")
    yield
    # The two further hosts go, so that no other test meets them.
    lab("down")
    lab("up")


@pytest.fixture
def inventory_of_one() -> Iterator[str]:
    """The lab's inventory with its head alone. Beside the lab's own, because that one names files by their way from it."""
    folder = CHECKOUT / "inventories" / "lab_one_host"
    shutil.copytree(CHECKOUT / INVENTORY, folder)
    hosts = yaml.safe_load((folder / "hosts.yml").read_text(encoding="utf-8"))
    del hosts["spark"]["children"]["worker"]
    (folder / "hosts.yml").write_text(yaml.safe_dump(hosts), encoding="utf-8")
    yield str(folder)
    shutil.rmtree(folder)


def tensor_parallel(size: int) -> tuple[str, str]:
    return "-e", json.dumps({"spark_tensor_parallel": size})


@pytest.mark.parametrize("backend", ["ray", "mp"])
def test_one_host_serves(inventory_of_one: str, backend: str) -> None:
    lists = {"spark_keep": {}, "spark_backend": backend}
    run = run_playbook(*tensor_parallel(1), "-e", json.dumps(lists), inventory=inventory_of_one)
    assert run.returncode == 0, run.output[-3000:]
    assert run.gates[-1] == "10" and "transport" not in run.output
    assert answers()
    again = run_playbook(*tensor_parallel(1), "-e", json.dumps(lists), inventory=inventory_of_one)
    assert again.changed == {"lab-head": 0}


def test_a_second_host_joins_one_that_serves() -> None:
    """The firewall of the one that serves knows no other host."""
    run = run_playbook()
    assert run.returncode == 0, run.output[-3000:]
    assert "2 Ray nodes" in " ".join(run.output.split()) and answers()


def test_four_hosts_serve() -> None:
    lab("up", "--hosts", "4")
    run = run_playbook(*FOUR, *tensor_parallel(4))
    assert run.returncode == 0, run.output[-3000:]
    assert "4 Ray nodes, 4 GPU(s)" in " ".join(run.output.split())
    assert answers()
    status = on("spark-head", "docker", "exec", "dgxspark-ray", "ray", "status")
    assert len(re.findall(r"^ 1 node_", status, re.MULTILINE)) == 4
    assert "4.0/4.0 GPU" in status
    down = run_playbook(*FOUR, playbook="playbooks/teardown.yml")
    assert down.returncode == 0, down.output[-3000:]
    assert nothing_of_ours_runs() == []
