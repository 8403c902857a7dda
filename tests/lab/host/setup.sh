#!/usr/bin/env bash
# Runs once in the image of a lab host, with this folder at /setup.
set -euo pipefail

cd /setup
install -d /usr/local/lib/lab /etc/lab
install -m 0644 lib/*.py /service/answer.py /usr/local/lib/lab/
install -m 0755 bin/lab-* /usr/local/sbin/
install -m 0755 bin/nvidia-smi /usr/bin/nvidia-smi
install -m 0644 units/*.service /etc/systemd/system/
python3 -m compileall -q /usr/local/lib/lab

useradd --create-home --shell /bin/bash --groups sudo spark
echo 'spark:spark-lab' | chpasswd
cat >/etc/ssh/sshd_config.d/lab.conf <<'CONFIG'
PermitRootLogin no
PasswordAuthentication no
UseDNS no
CONFIG
rm -f /etc/ssh/ssh_host_*

# Sysctls without a namespace are the outer machine's: never apply them from here.
systemctl mask --quiet systemd-sysctl.service systemd-modules-load.service systemd-binfmt.service \
    console-getty.service getty.target apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    fstrim.timer sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount dev-hugepages.mount \
    proc-sys-fs-binfmt_misc.automount
# A stock Spark has none running; a test starts it.
systemctl disable --quiet earlyoom.service
systemctl enable --quiet lab-network.service lab-hardware.service ssh.service docker.service
