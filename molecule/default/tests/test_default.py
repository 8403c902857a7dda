"""The deployed hosts serve the model and nothing of what ran before."""

from __future__ import annotations

import json
from typing import Any

testinfra_hosts = ["docker://spark-head"]


def test_the_model_answers(host: Any) -> None:
    key = host.run("cat /etc/dgxspark/api-key").stdout.strip()
    body = json.dumps({"model": "qwen35", "temperature": 0, "messages": [{"role": "user", "content": "What is 2+2?"}]})
    answer = host.run(
        "curl -s --max-time 60 -H 'Content-Type: application/json' -H %s -d %s http://192.168.242.12:8000/v1/chat/completions",
        f"Authorization: Bearer {key}",
        body,
    )
    content = json.loads(answer.stdout)["choices"][0]["message"]["content"].strip()
    assert content == "2 + 2 = 4.", host.run("journalctl -n 60 -u dgxspark-vllm").stdout


def test_what_ran_before_is_stopped(host: Any) -> None:
    names = set(host.run("docker ps --format '{{.Names}}'").stdout.split())
    assert names == {"dgxspark-ray", "dgxspark-vllm"}
