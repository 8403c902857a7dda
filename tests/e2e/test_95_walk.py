"""docs/walk.md is true: all its commands, in their order (make test-full PART=walk). It takes the lab down at its end."""

from __future__ import annotations

import re
import subprocess

import pytest
from conftest import CHECKOUT

WALK = (CHECKOUT / "docs" / "walk.md").read_text(encoding="utf-8")
# What a command must say, by words that only it has.
SAYS = {
    "make demo": "answer        2 + 2 = 4.",
    "playbooks/status.yml": "dgxspark-vllm.service",
    "journalctl -u dgxspark-vllm": '"POST /v1/chat/completions HTTP/1.1" 200 OK',
    "playbooks/benchmark.yml": "tokens/s",
    "spark_max_model_len=1024 --check": "not evaluated in check mode",
    "cat /etc/systemd/system/dgxspark-vllm.service": '"--max-model-len" "2048"',
    "spark_max_model_len=100000": "spark_max_model_len is 100000, the model knows 4096 positions.",
    "spark_tensor_parallel": "spark_tensor_parallel",
    "--no-such-argument": "ENGINE.ARGUMENT_REFUSED",
    "spark_teardown_restore=true": "runs again: unit vllm-cluster.service",
}
AGAIN = "ansible-playbook deploy_qwen35.yml -i inventories/lab_inventory"
SAYS[AGAIN] = "nothing: the hosts are as planned"
# In the section about failures.
FAILS = ("spark_max_model_len=100000", "spark_tensor_parallel", "--no-such-argument")
# Longer than any deployment of the lab, and than bringing it up from nothing.
COMMAND_SECONDS = 1800


def commands() -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", WALK, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def preset() -> str:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", WALK, re.MULTILINE | re.DOTALL)
    return str(block)


# One after the other: the first that is not as said ends the walk.
@pytest.mark.parametrize("number", range(len(commands())))
def test_the_walk(number: int, request: pytest.FixtureRequest) -> None:
    if request.session.testsfailed:
        pytest.fail("an earlier step of the walk failed")
    command = commands()[number]
    path = next(line for line in commands() if line.startswith("export PATH="))
    (CHECKOUT / "build").mkdir(exist_ok=True)
    (CHECKOUT / "build" / "my_preset.yml").write_text(preset(), encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", f"{path}\n{command}"],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    said = " ".join(done.stdout.split())
    assert (done.returncode != 0) == any(words in command for words in FAILS), done.stdout[-3000:]
    for words, expected in SAYS.items():
        if words in command and (words != AGAIN or words == command):
            assert " ".join(expected.split()) in said, done.stdout[-3000:]
