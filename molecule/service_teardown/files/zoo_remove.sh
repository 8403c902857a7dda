#!/usr/bin/env bash
# Takes away what zoo.sh has made.
set -euo pipefail

for unit in wrapper ping pong woken; do
    # Two of them restart each other as long as their files are there.
    rm -f "/etc/systemd/system/zoo-$unit".{service,socket}
    rm -rf "/etc/systemd/system/zoo-$unit.service.d"
done
systemctl daemon-reload
systemctl stop zoo-wrapper.service zoo-ping.service zoo-pong.service zoo-woken.socket zoo-woken.service 2>/dev/null || true
systemctl kill --signal=KILL zoo-ping.service zoo-pong.service 2>/dev/null || true
systemctl reset-failed 'zoo-*' 2>/dev/null || true
docker ps -aq --filter name=^zoo- | xargs -r docker rm -f >/dev/null
pkill -KILL -f '^VLLM::EngineCore' || true
rm -f /usr/local/bin/zoo-monitor /etc/systemd/system/*.wants/zoo-*
