#!/usr/bin/env bash
# Every kind of thing that holds memory on a host and that a teardown must know. Runs as root on a host of the lab.
set -euo pipefail

container() { # container NAME PORT DOCKER_ARGUMENTS...
    local name=$1 port=$2
    shift 2
    docker run -d --name "$name" --network host -e LAB_GPU_MIB=300 "$@" lab-service:1 --name "$name" --port "$port" >/dev/null
}

unit() { # unit NAME < text
    cat >"/etc/systemd/system/$1.service"
}

container zoo-no 8201 --restart no
container zoo-always 8202 --restart always
container zoo-unless 8203 --restart unless-stopped
container zoo-retry 8204 --restart on-failure:3
container zoo-paused 8205 --restart always
docker pause zoo-paused >/dev/null
container zoo-temporary 8206 --rm
container zoo-kept 8207 --restart always

# What docker compose makes of a file with two services.
stack=(--label com.docker.compose.project=zoo-stack --restart unless-stopped)
container zoo-stack-db-1 8208 "${stack[@]}" --label com.docker.compose.service=db
container zoo-stack-api-1 8209 "${stack[@]}" --label com.docker.compose.service=api \
    --label com.docker.compose.depends_on=db:service_started:false

# A unit whose script starts a container and watches it: the container lives beside the unit.
cat >/usr/local/bin/zoo-monitor <<'SCRIPT'
#!/bin/sh
NAME=zoo-wrapped
docker inspect $NAME >/dev/null 2>&1 ||
    docker run -d --restart always --name $NAME --network host -e LAB_GPU_MIB=300 lab-service:1 --name $NAME --port 8210
docker start $NAME
while sleep 1; do docker inspect $NAME >/dev/null; done
SCRIPT
chmod 755 /usr/local/bin/zoo-monitor
unit zoo-wrapper <<'UNIT'
[Service]
ExecStart=/usr/local/bin/zoo-monitor
Restart=always
[Install]
WantedBy=multi-user.target
UNIT

# Two units that restart each other.
for pair in "ping pong 8211" "pong ping 8212"; do
    read -r name other port <<<"$pair"
    unit "zoo-$name" <<UNIT
[Service]
Environment=LAB_GPU_MIB=300
ExecStart=/usr/bin/python3 /usr/local/lib/lab/answer.py --name zoo-$name --port $port
ExecStopPost=/bin/systemctl --no-block start zoo-$other.service
[Install]
WantedBy=multi-user.target
UNIT
done

# A socket that wakes its unit.
cat >/etc/systemd/system/zoo-woken.socket <<'UNIT'
[Socket]
ListenStream=8213
[Install]
WantedBy=sockets.target
UNIT
unit zoo-woken <<'UNIT'
[Service]
Environment=LAB_GPU_MIB=300
ExecStart=/bin/sleep infinity
UNIT

systemctl daemon-reload
systemctl enable --quiet --now zoo-wrapper.service zoo-ping.service zoo-pong.service zoo-woken.socket
systemctl start zoo-woken.service

# An engine's worker whose server is gone, and which does not care about SIGTERM.
LAB_GPU_MIB=300 setsid bash -c \
    'trap "" TERM; exec -a VLLM::EngineCore sleep 100000' </dev/null >/dev/null 2>&1 &

for port in 8201 8202 8203 8204 8207 8208 8209 8210 8211 8212; do
    until curl -s -o /dev/null --max-time 2 "http://127.0.0.1:$port/"; do sleep 0.2; done
done
