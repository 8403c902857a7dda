"""Whatever happens between teardown and acceptance, the hosts serve again what they served (make test-full PART=rollback).

The hosts hold the zoo of molecule/service_teardown: every restart policy, a compose-like stack, a wrapper unit, units that
restart each other, an orphan of an engine.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from conftest import (
    CHECKOUT,
    ENGINE_STARTS,
    Deployment,
    Run,
    containers,
    identity,
    lab,
    nothing_of_ours_runs,
    on,
    run_playbook,
    unit_state,
    wait_until,
    what_ran_before_runs,
)

FILES = CHECKOUT / "molecule" / "service_teardown" / "files"
ZOO = ("-e", f"@{FILES / 'zoo.yml'}")
# So short that a test needs not wait for five minutes, and so long that a busy machine is not taken for a dead one.
SOON = ("-e", "spark_restore_seconds=60")
HOSTS = ("spark-head", "spark-worker")
# A lease of 60 s, twice 90 s more from gate 5 on (for gate 6) until the first look of a wait, the timer's 10 s, and the start of the
# services.
RESTORES_ITSELF_WITHIN_SECONDS = 360

PORTS = {
    "zoo-no": 8201,
    "zoo-always": 8202,
    "zoo-unless": 8203,
    "zoo-retry": 8204,
    "zoo-kept": 8207,
    "zoo-stack-db-1": 8208,
    "zoo-stack-api-1": 8209,
    "zoo-wrapped": 8210,
    "zoo-ping": 8211,
    "zoo-pong": 8212,
}
POLICIES = {
    "zoo-no": "no",
    "zoo-always": "always",
    "zoo-unless": "unless-stopped",
    "zoo-retry": "on-failure",
    "zoo-paused": "always",
    "zoo-stack-db-1": "unless-stopped",
    "zoo-stack-api-1": "unless-stopped",
    "zoo-wrapped": "always",
}


def script(name: str) -> None:
    subprocess.run(
        ["docker", "exec", "-i", "spark-worker", "bash", "-s"], input=(FILES / name).read_text(), text=True, check=True
    )


@pytest.fixture(scope="module", autouse=True)
def zoo() -> Iterator[dict[str, tuple[str, str]]]:
    """The kept containers as they were before everything."""
    lab("reset")
    script("zoo.sh")
    yield {name: identity("spark-worker", name) for name in ("embeddings", "zoo-kept")}
    lab("reset")


def what_of_the_zoo_does_not_run() -> dict[str, str]:
    down = {}
    present = containers("spark-worker")
    for name, policy in POLICIES.items():
        item = present.get(name)
        if item is None:
            down[name] = "not running"
        elif item["HostConfig"]["RestartPolicy"]["Name"] != policy:
            down[name] = f"policy {item['HostConfig']['RestartPolicy']['Name']}"
    if "zoo-paused" in present and not present["zoo-paused"]["State"]["Paused"]:
        down["zoo-paused"] = "not paused"
    for name, port in PORTS.items():
        if name not in on("spark-worker", "curl", "-s", "--max-time", "5", f"http://127.0.0.1:{port}/", check=False):
            down[f"{name} port {port}"] = "does not answer"
    for unit in ("zoo-wrapper.service", "zoo-ping.service", "zoo-pong.service", "zoo-woken.socket"):
        enabled = on("spark-worker", "systemctl", "is-enabled", unit, check=False).strip()
        if unit_state("spark-worker", unit) != "active" or enabled != "enabled":
            down[unit] = f"{unit_state('spark-worker', unit)}, {enabled}"
    return down


def everything_down() -> dict[str, str]:
    return {**what_ran_before_runs(), **what_of_the_zoo_does_not_run()}


def assert_as_before(zoo: dict[str, tuple[str, str]]) -> None:
    assert everything_down() == {}
    assert nothing_of_ours_runs() == []
    for host in HOSTS:
        assert on(host, "sh", "-c", "ls /etc/systemd/system | grep dgxspark", check=False) == ""
    assert {name: identity("spark-worker", name) for name in zoo} == zoo


def said(run: Run, words: str) -> dict[str, list[str]]:
    """Host to what the play said it stopped (or would stop), each host's own, sorted."""
    lines = re.findall(rf"^   \[(lab-\w+)\] {words}: (.+)$", run.output, re.MULTILINE)
    return {host: sorted(names.split(", ")) for host, names in lines}


@contextmanager
def stranger(*command: str, title: str = "") -> Iterator[None]:
    """A process of somebody on the head."""
    run = ["bash", "-c", f"exec -a '{title}' {' '.join(command)}"] if title else list(command)
    process = subprocess.Popen(["docker", "exec", "-e", "LAB_GPU_MIB=9000", "spark-head", *run])
    try:
        yield
    finally:
        on("spark-head", "pkill", "-f", command[-1], check=False)
        process.wait(timeout=30)


def test_training_notebook_and_desktop_that_nobody_named_stop_the_run_untouched(
    zoo: dict[str, tuple[str, str]],
) -> None:
    on("spark-head", "sh", "-c", "printf 'import time; time.sleep(991)' > /tmp/train.py")
    on("spark-head", "sh", "-c", "printf 'import time; time.sleep(992)' > /tmp/jupyter-lab")
    people = (("python3", "/tmp/train.py"), ("python3", "/tmp/jupyter-lab"))
    with ExitStack() as stack:
        for command in people:
            stack.enter_context(stranger(*command))
        stack.enter_context(stranger("sleep", "993", title="/usr/lib/xorg/Xorg"))
        time.sleep(1)
        run = run_playbook(*ZOO)
        alive = on("spark-head", "ps", "ax", "-o", "args")
    run.assert_stopped_at("2")
    text = " ".join(run.output.split())
    for name in ("train.py", "jupyter-lab", "Xorg"):
        assert f"held by process {name}" in text
        assert f"spark_keep: {{processes: [{name}]}}" in text
    assert "/tmp/train.py" in alive and "/tmp/jupyter-lab" in alive and "Xorg" in alive
    assert_as_before(zoo)


def test_lists_that_contradict_each_other_stop_the_run_at_gate_2(zoo: dict[str, tuple[str, str]]) -> None:
    lists = yaml.safe_load((FILES / "zoo.yml").read_text(encoding="utf-8"))
    lists["spark_keep"]["containers"].append("zoo-wrapped")
    run = run_playbook("-e", json.dumps(lists))
    run.assert_stopped_at("2")
    assert "container zoo-wrapped is on spark_keep, and unit zoo-wrapper.service of spark_stop starts it" in " ".join(
        run.output.split()
    )
    assert_as_before(zoo)


def test_check_mode_says_what_the_real_run_stops_and_ray_that_does_not_form_undoes_it(
    zoo: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    foreseen = run_playbook(*ZOO, "--check", "--diff")
    assert foreseen.returncode == 0, foreseen.output[-3000:]
    assert_as_before(zoo)
    over = tmp_path / "no_gpu.yml"
    over.write_text(yaml.safe_dump({"all": {"hosts": {"lab-worker": {"ray_cluster_num_gpus": "0"}}}}), encoding="utf-8")
    run = run_playbook(*ZOO, "-i", str(over))
    run.assert_stopped_at("7")
    assert "192.168.240.13 has 0 GPU(s) in Ray, expected 1" in " ".join(run.output.split())
    would, did = said(foreseen, "would be stopped"), said(run, "stopped")
    assert would == did
    assert "container zoo-wrapped" in did["lab-worker"]
    assert said(foreseen, "kept") == said(run, "kept") == {"lab-worker": ["container embeddings", "container zoo-kept"]}
    assert_as_before(zoo)


def test_an_engine_that_dies_at_its_start_is_undone(zoo: dict[str, tuple[str, str]]) -> None:
    run = run_playbook(*ZOO, "-e", '{"spark_engine_arguments": ["--no-such-argument"]}')
    run.assert_stopped_at("9")
    assert "The deployment failed at gate 9 (serve)" in run.output
    assert "unrecognized arguments: --no-such-argument" in " ".join(run.output.split())
    assert_as_before(zoo)


def test_a_wrong_answer_is_undone(zoo: dict[str, tuple[str, str]], mutated_model: Callable[[str], str]) -> None:
    run = run_playbook(*ZOO, "-e", f"spark_model_folder={mutated_model('wrong-answer')}")
    run.assert_stopped_at("10")
    assert "was answered with '2 + 2 = 5.'" in " ".join(run.output.split())
    assert_as_before(zoo)


def wait_until_restored(zoo: dict[str, tuple[str, str]]) -> None:
    started = time.monotonic()
    while time.monotonic() - started < RESTORES_ITSELF_WITHIN_SECONDS:
        leases = [host for host in HOSTS if on(host, "ls", "/var/lib/dgxspark/restore/.lease", check=False)]
        if not leases and not everything_down():
            break
        time.sleep(2)
    print(f"restored after {time.monotonic() - started:.0f} s")
    assert_as_before(zoo)


def what_the_next_run_says() -> str:
    run = run_playbook(*ZOO, playbook="playbooks/preflight.yml")
    assert run.returncode == 0, run.output[-3000:]
    return " ".join(run.output.split())


def test_a_second_run_is_refused_and_a_killed_one_is_undone_by_the_hosts(zoo: dict[str, tuple[str, str]]) -> None:
    deployment = Deployment(*ZOO, *SOON)
    deployment.until("== Gate 7")
    second = run_playbook(*ZOO, playbook="playbooks/preflight.yml")
    second.assert_stopped_at("2")
    assert "has been at work on this host since" in " ".join(second.output.split())
    deployment.until(ENGINE_STARTS)
    deployment.kill()
    wait_until_restored(zoo)
    text = what_the_next_run_says()
    for host in ("lab-head", "lab-worker"):
        assert re.search(rf"{host}: Run \S+ was undone here at .{{19}}: no sign of the run for \d+ s", text)


def test_a_run_that_is_killed_in_the_middle_of_the_teardown_is_undone(zoo: dict[str, tuple[str, str]]) -> None:
    deployment = Deployment(*ZOO, *SOON)
    deployment.until("TASK [dgxspark.serving.service_teardown : Write the restore point")
    time.sleep(1.5)
    deployment.kill()
    wait_until_restored(zoo)


def test_a_worker_whose_ssh_is_cut_restores_itself_and_the_head_is_brought_back(
    zoo: dict[str, tuple[str, str]],
) -> None:
    deployment = Deployment(*ZOO, *SOON)
    deployment.until(ENGINE_STARTS)
    on("spark-worker", "systemctl", "stop", "ssh.service", "ssh.socket", check=False)
    on("spark-worker", "sh", "-c", "mv /usr/sbin/sshd /usr/sbin/sshd.away; pkill -KILL sshd", check=False)
    try:
        run = deployment.end()
        assert run.returncode != 0
        assert "The deployment failed at gate 9 (serve)" in run.output
        text = " ".join(run.output.split())
        assert "lab-worker: the rank cannot be looked at: no connection for 20 s" in text
        assert "lab-worker: does not answer. What ran before is brought back by the host itself" in text
        assert what_ran_before_runs().keys() <= {"spark-worker reranker"}
        wait_until_restored(zoo)
    finally:
        on("spark-worker", "mv", "/usr/sbin/sshd.away", "/usr/sbin/sshd")
        on("spark-worker", "systemctl", "start", "ssh.service")
    assert re.search(r"no sign of the run for \d+ s", what_the_next_run_says())


def reboot(zoo: dict[str, tuple[str, str]], host: str, *, power_cut: bool = False) -> None:
    """A shutdown takes as long as a deployment needs from here on; a power cut takes no time."""
    before = dict(zoo)
    orders = (["kill", host], ["start", host]) if power_cut else (["restart", "-t", "90", host],)
    for order in orders:
        subprocess.run(["docker", *order], check=True, stdout=subprocess.DEVNULL)
    wait_until(lambda: on(host, "docker", "ps", "--quiet", check=False) != "", 120)
    if host == "spark-worker":
        # Kept containers came back with the host; what was started by hand did not.
        for name, (identifier, _started) in before.items():
            zoo[name] = (identifier, containers("spark-worker")[name]["State"]["StartedAt"])


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_that_is_rebooted_restores_itself_without_a_control_node(
    zoo: dict[str, tuple[str, str]], host: str
) -> None:
    deployment = Deployment(*ZOO, *SOON)
    deployment.until(ENGINE_STARTS)
    deployment.kill()
    reboot(zoo, host)
    wait_until_restored(zoo)
    text = what_the_next_run_says()
    assert "the host was rebooted, so the host restored itself" in text
    assert re.search(r"no sign of the run for \d+ s", text)


def test_a_host_that_loses_its_power_is_noticed_by_the_run(zoo: dict[str, tuple[str, str]]) -> None:
    """Who brings it back, the run or the host, is a matter of seconds; both may try."""
    deployment = Deployment(*ZOO, *SOON)
    deployment.until(ENGINE_STARTS)
    reboot(zoo, "spark-worker", power_cut=True)
    run = deployment.end()
    assert run.returncode != 0
    assert "The deployment failed at gate 9 (serve)" in run.output
    wait_until_restored(zoo)


def test_a_deployment_goes_and_what_ran_before_comes_back_on_request(zoo: dict[str, tuple[str, str]]) -> None:
    run = run_playbook(*ZOO)
    assert run.returncode == 0, run.output[-3000:]
    # An accepted deployment leaves no timer, and ends the notices of earlier runs.
    for host in HOSTS:
        assert unit_state(host, "dgxspark-restore.timer") == "inactive"
        assert on(host, "ls", "-A", "/var/lib/dgxspark/restore").count(".outcome") == 0
    status = run_playbook(playbook="playbooks/status.yml")
    assert "serves qwen35_tiny since run" in status.output
    assert re.search(r"restore point \S+ of .*unit vllm-cluster.service", status.output)

    empty = run_playbook(playbook="playbooks/teardown.yml")
    assert empty.returncode == 0, empty.output[-3000:]
    assert nothing_of_ours_runs() == []
    for host in HOSTS:
        assert not {"glm", "reranker", "zoo-always"} & set(containers(host))
        assert on(host, "ls", "/etc/dgxspark/ray-token", check=False) == ""
    assert run_playbook(playbook="playbooks/teardown.yml").changed == {"lab-head": 0, "lab-worker": 0}

    back = run_playbook(playbook="playbooks/rollback.yml")
    assert back.returncode == 0, back.output[-3000:]
    assert_as_before(zoo)
    assert run_playbook(playbook="playbooks/rollback.yml").changed == {"lab-head": 0, "lab-worker": 0}
