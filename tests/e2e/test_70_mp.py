"""Two hosts without Ray: deployment, dead ranks, reboots, the way back (make test-full PART=mp)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import (
    answers,
    ask_the_canary,
    assert_only_ssh_and_the_api_answer,
    assert_the_canary_restarts_the_engine,
    containers,
    lab,
    nothing_of_ours_runs,
    on,
    reboot_both,
    run_playbook,
    signalled,
    unit_state,
    wait_until,
    what_ran_before_runs,
)

HOSTS = ("spark-head", "spark-worker")
ENGINE = "dgxspark-vllm.service"
MP = ("-e", "spark_backend=mp")
# Two starts of the engine on two cores.
SERVES_AGAIN_WITHIN_SECONDS = 420
# A rank that has lost another is stopped at once; docker stop may take its whole time limit.
NOTICED_WITHIN_SECONDS = 40


def rank_of(host: str) -> str:
    """Id of the container that is the host's rank, or nothing."""
    return str(containers(host).get("dgxspark-vllm", {}).get("Id", ""))


def engine_processes(host: str) -> str:
    return on(host, "pgrep", "-af", "^(VLLM::|.*vllm serve|.*dgxspark-mp-rank)", check=False)


def journal(host: str, unit: str = ENGINE) -> str:
    return on(host, "journalctl", "-u", unit, "--no-pager", "--output=cat", "--lines=400")


@pytest.fixture(scope="module", autouse=True)
def start_state() -> None:
    lab("reset")


def test_a_start_that_fails_is_undone_on_all_hosts() -> None:
    run = run_playbook(*MP, "-e", '{"spark_engine_arguments": ["--no-such-argument"]}')
    run.assert_stopped_at("9")
    assert "--no-such-argument" in run.output
    assert nothing_of_ours_runs() == [] and what_ran_before_runs() == {}


def test_a_failure_stays_to_be_looked_at_where_that_is_wished() -> None:
    """The command of docs/troubleshooting.md. What it gives is text, not a boolean."""
    run = run_playbook(*MP, "-e", '{"spark_engine_arguments": ["--no-such-argument"]}', "-e", "spark_rollback=false")
    run.assert_stopped_at("9")
    assert what_ran_before_runs() != {}
    assert "--no-such-argument" in on("spark-head", "cat", f"/etc/systemd/system/{ENGINE}")
    back = run_playbook(playbook="playbooks/rollback.yml")
    assert back.returncode == 0, back.output[-3000:]
    assert nothing_of_ours_runs() == [] and what_ran_before_runs() == {}


def test_two_hosts_serve_without_ray() -> None:
    run = run_playbook(*MP)
    assert run.returncode == 0, run.output[-3000:]
    assert "== Gate 7: no Ray: mp" in run.output and "2 host(s) without Ray (mp)" in run.output
    assert answers()
    for rank, host in enumerate(HOSTS):
        engine = containers(host)["dgxspark-vllm"]
        assert engine["Config"]["Labels"]["io.dgxspark.serving.role"] == "engine"
        assert engine["Config"]["Labels"]["io.dgxspark.serving.rank"] == str(rank)
        assert engine["HostConfig"]["NetworkMode"] == engine["HostConfig"]["IpcMode"] == "host"
        assert engine["HostConfig"]["CapDrop"] == ["ALL"]
        assert "dgxspark-ray" not in containers(host)
        assert on(host, "sh", "-c", "ls /etc/dgxspark /etc/systemd/system").count("ray") == 0
        for unit in (ENGINE, "dgxspark-memguard.service", "dgxspark-firewall.service"):
            assert unit_state(host, unit) == "active"
    # The key of the API has no business on a worker.
    assert "api-key" not in on("spark-worker", "ls", "/etc/dgxspark")


def test_a_second_run_changes_nothing() -> None:
    run = run_playbook(*MP)
    assert run.returncode == 0, run.output[-3000:]
    assert set(run.changed.values()) == {0}


def test_what_the_ranks_listen_on_is_silent_for_the_management_network() -> None:
    assert_only_ssh_and_the_api_answer({20121})


@pytest.mark.parametrize("host", HOSTS[::-1])
def test_a_rank_that_is_killed_ends_the_other_and_both_come_back(host: str) -> None:
    """vLLM alone would notice at the next request, and a worker never."""
    other = HOSTS[1 - HOSTS.index(host)]
    before = rank_of(other)
    on(host, "docker", "kill", "dgxspark-vllm")
    wait_until(lambda: rank_of(other) != before, NOTICED_WITHIN_SECONDS)
    wait_until(answers, SERVES_AGAIN_WITHIN_SECONDS)
    assert "has ended: this rank is ended" in journal(other)


def test_a_rank_that_hangs_is_noticed_by_the_canary() -> None:
    before = rank_of("spark-worker")
    frozen = signalled("spark-worker", "STOP", "VLLM::Worker")
    assert assert_the_canary_restarts_the_engine(frozen, SERVES_AGAIN_WITHIN_SECONDS) == ["200", "200"]
    assert rank_of("spark-worker") != before


@contextmanager
def killed_behind_the_back_of_the_head() -> Iterator[None]:
    """The head's rank program would notice at once, and vLLM does not before somebody asks: the program is frozen."""
    with signalled("spark-head", "STOP", ".*dgxspark-mp-rank"), signalled("spark-worker", "KILL", "VLLM::Worker"):
        wait_until(lambda: not rank_of("spark-worker"), NOTICED_WITHIN_SECONDS)
        yield


def test_a_rank_that_is_killed_while_the_engine_says_200_is_noticed_by_the_canary() -> None:
    before = rank_of("spark-worker")
    harm = killed_behind_the_back_of_the_head()
    assert assert_the_canary_restarts_the_engine(harm, SERVES_AGAIN_WITHIN_SECONDS)[0] == "200"
    assert rank_of("spark-worker") not in ("", before)


def test_a_restart_that_did_not_help_is_the_last_one() -> None:
    """The canary has started the engine again in the test before: it gives up, says so, and leaves the engine to a person."""
    assert ask_the_canary() == "ok"
    with killed_behind_the_back_of_the_head():
        states = [ask_the_canary() for _question in range(3)]
    assert states == ["failing", "gave_up", "gave_up"]
    assert "gave up: the API does not answer" in journal("spark-head", "dgxspark-canary.service")
    # What has died takes a moment to be gone.
    wait_until(lambda: not rank_of("spark-head"), NOTICED_WITHIN_SECONDS)
    # So many starts in so few minutes are more than the unit allows by itself.
    on("spark-head", "systemctl", "reset-failed", ENGINE)
    on("spark-head", "systemctl", "restart", ENGINE)
    wait_until(answers, SERVES_AGAIN_WITHIN_SECONDS)
    assert ask_the_canary() == "ok"


@pytest.mark.parametrize("order", [HOSTS[::-1], HOSTS])
def test_both_hosts_reboot_and_serve_again(order: tuple[str, str]) -> None:
    reboot_both(order, SERVES_AGAIN_WITHIN_SECONDS)


def test_a_stop_leaves_no_process_behind() -> None:
    """First the head alone: the worker's rank ends with it, and waits without memory."""
    on("spark-head", "systemctl", "stop", ENGINE)
    wait_until(lambda: not rank_of("spark-worker"), NOTICED_WITHIN_SECONDS)
    on("spark-worker", "systemctl", "stop", ENGINE)
    time.sleep(5)
    for host in HOSTS:
        assert engine_processes(host) == ""
        assert unit_state(host, ENGINE) == "inactive"


def test_over_ray_again_no_rank_of_mp_runs() -> None:
    run = run_playbook()
    assert run.returncode == 0, run.output[-3000:]
    assert "dgxspark-vllm" not in containers("spark-worker") and "dgxspark-ray" in containers("spark-worker")
    # What was replaced is stopped and does not start at boot.
    assert unit_state("spark-worker", ENGINE) == "inactive"
    assert on("spark-worker", "systemctl", "is-enabled", ENGINE, check=False).strip() != "enabled"
    assert answers()
