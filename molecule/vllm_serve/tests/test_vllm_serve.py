"""The engine answers those who know the key, over both hosts, and ends with its unit."""

from __future__ import annotations

import json
import time
from typing import Any

testinfra_hosts = ["docker://spark-head"]
URL = "http://192.168.242.12:8000/v1"


def ask(host: Any, question: str, key: str) -> Any:
    body = json.dumps({"model": "qwen35", "temperature": 0, "messages": [{"role": "user", "content": question}]})
    return host.run(
        "curl -s --max-time 60 -H 'Content-Type: application/json' -H %s -d %s %s",
        f"Authorization: Bearer {key}",
        body,
        f"{URL}/chat/completions",
    )


def test_it_answers_with_reasoning(host: Any) -> None:
    key = host.run("cat /etc/dgxspark/api-key").stdout.strip()
    answer = ask(host, "What is 2+2?", key)
    message = json.loads(answer.stdout)["choices"][0]["message"]
    assert message["content"].strip() == "2 + 2 = 4.", host.run("journalctl -n 60 -u dgxspark-vllm").stdout
    assert (message.get("reasoning") or message.get("reasoning_content")).strip() == "2 plus 2 makes 4."


def test_without_the_key_it_does_not(host: Any) -> None:
    assert "nauthorized" in ask(host, "What is 2+2?", "guess").stdout


def test_the_gpus_of_both_hosts_are_in_use(host: Any) -> None:
    status = host.run("docker exec dgxspark-ray ray status").stdout
    assert "2.0/2.0 GPU" in status


def test_the_key_is_readable_by_root_only(host: Any) -> None:
    key = host.file("/etc/dgxspark/api-key")
    assert (key.mode, key.user) == (0o400, "root")


def test_no_engine_process_is_left_when_the_unit_stops(host: Any) -> None:
    assert host.run("systemctl stop dgxspark-vllm").rc == 0
    # The design allows 30 s.
    deadline = time.monotonic() + 30
    while host.run("pgrep -f '[V]LLM::|[R]ayWorkerProc|[v]llm serve'").stdout and time.monotonic() < deadline:
        time.sleep(1)
    assert host.run("pgrep -af '[V]LLM::|[R]ayWorkerProc|[v]llm serve'").stdout == ""
