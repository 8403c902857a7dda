#!/usr/bin/env bash
# Prove that the lab can do what it is for: serve the tiny model with TP=2 over Ray between its two hosts.
# Needs the lab to be up; `lab.py reset` afterwards removes what this leaves on the worker (image and model).
set -euo pipefail

cd "$(dirname "$0")"
image=vllm-node:0.32
head_address=192.168.240.12
worker_address=192.168.240.13
port=8010 # 8000 belongs to the service that runs before
token=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
started=$SECONDS

say() { printf '[%4ss] %s\n' $((SECONDS - started)) "$*"; }

# What both containers of a host get. The engine needs no capability at all.
hardened=(--cap-drop ALL --security-opt no-new-privileges --network host --ipc host
    -v smoke-tmp:/tmp -v /run/smoke-token:/run/smoke-token:ro -v /srv/models:/srv/models:ro
    -e RAY_AUTH_MODE=token -e RAY_AUTH_TOKEN_PATH=/run/smoke-token
    -e GLOO_SOCKET_IFNAME=enp1s0f0np0 -e TP_SOCKET_IFNAME=enp1s0f0np0 -e NCCL_SOCKET_IFNAME=enp1s0f0np0
    -e RAY_USAGE_STATS_ENABLED=0)

on() { # on HOST COMMAND...
    docker exec -i "$@"
}

clean() {
    for host in spark-head spark-worker; do
        on "$host" docker rm -f -v smoke-vllm smoke-ray >/dev/null 2>&1 || true
        on "$host" docker volume rm -f smoke-tmp >/dev/null 2>&1 || true
        on "$host" rm -f /run/smoke-token
    done
}

ray() { # ray HOST ADDRESS OPTION...: start the node's Ray as the main process of a container
    local host=$1 address=$2
    shift 2
    printf %s "$token" | on "$host" install -m 0400 /dev/stdin /run/smoke-token
    on "$host" docker run -d --init --name smoke-ray "${hardened[@]}" -e "VLLM_HOST_IP=$address" "$image" \
        ray start --block "--node-ip-address=$address" --num-gpus=1 --num-cpus=2 --object-store-memory=100000000 \
        --disable-usage-stats "$@" >/dev/null
}

ask() { # ask JSON: a chat completion of the head
    on spark-head curl -fsS --max-time 60 "http://127.0.0.1:$port/v1/chat/completions" \
        -H 'Content-Type: application/json' -d "$1"
}

alive() { # alive PATTERN: how many processes of it run on both hosts
    for host in spark-head spark-worker; do
        on "$host" pgrep -fc "$1" || true
    done | paste -sd' '
}

trap clean EXIT
clean
python3 lab.py load spark-worker "$image"
on spark-head tar -C /srv/models -c qwen35-tiny | on spark-worker tar -C /srv/models -x
say "the worker has the image and the model"

ray spark-head "$head_address" --head --port=6379 --include-dashboard=false
ray spark-worker "$worker_address" "--address=$head_address:6379"
until [ "$(on spark-head docker exec smoke-ray ray status 2>/dev/null | grep -c '1 node_')" = 2 ]; do
    [ $((SECONDS - started)) -lt 300 ] || { on spark-worker docker logs smoke-ray; exit 1; }
    sleep 1
done
say "Ray has two nodes"

on spark-head docker run -d --name smoke-vllm "${hardened[@]}" --pid container:smoke-ray \
    -e "VLLM_HOST_IP=$head_address" -e "RAY_ADDRESS=$head_address:6379" "$image" \
    vllm serve /srv/models/qwen35-tiny --served-model-name qwen35 --host 127.0.0.1 --port "$port" \
    --tensor-parallel-size 2 --distributed-executor-backend ray --max-model-len 512 --max-num-seqs 4 \
    --enforce-eager --language-model-only --reasoning-parser qwen3 --enable-auto-tool-choice \
    --tool-call-parser qwen3_coder >/dev/null
until on spark-head curl -fsS --max-time 2 "http://127.0.0.1:$port/health" >/dev/null 2>&1; do
    if [ -z "$(on spark-head docker ps -q -f name=smoke-vllm)" ] || [ $((SECONDS - started)) -gt 600 ]; then
        on spark-head docker logs smoke-vllm
        exit 1
    fi
    sleep 1
done
say "vLLM is healthy"
on spark-head nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader
on spark-worker nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader

answer=$(ask '{"model":"qwen35","temperature":0,"messages":[{"role":"user","content":"What is 2+2?"}]}')
echo "$answer"
grep -q '"content":"[^"]*2 + 2 = 4\.' <<<"$answer"
grep -q '"reasoning":"2 plus 2 makes 4' <<<"$answer"
answer=$(ask '{"model":"qwen35","temperature":0,"messages":[{"role":"user","content":"What is the weather in Paris?"}],
    "tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
    "properties":{"city":{"type":"string"}}}}}]}')
echo "$answer"
grep -q '"name":"get_weather"' <<<"$answer"
say "answers with reasoning, content and a tool call"

on spark-head docker stop smoke-vllm >/dev/null
say "vLLM stopped; engine processes left on head and worker: $(alive 'VLLM::|RayWorkerProc')"
