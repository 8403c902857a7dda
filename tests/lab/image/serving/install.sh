#!/usr/bin/env bash
# Runs in a container of the base image: install all wheels of /wheels, then /setup/finish.py's repairs.
# Usage: install.sh [--drop-native] (without the compiled parts: enough to be looked at, not to run)
set -euo pipefail

site=/usr/local/lib/python3.11/dist-packages
mapfile -t wheels < <(find /wheels -name '*.whl' ! -name 'pip-*')
pip=$(echo /wheels/pip-*.whl)
python3 "$pip/pip" install --quiet --no-index --no-deps --no-compile --break-system-packages \
    --root-user-action=ignore "${wheels[@]}"
if [ "${1:-}" = --drop-native ]; then
    find "$site" -name '*.so' -delete
fi
python3 -B /setup/finish.py "$site"
# unchecked-hash: valid whatever `docker load` does to file times. Some packages carry templates that are no Python: || true
python3 -m compileall -q -j 2 --invalidation-mode unchecked-hash "$site" || true
ldconfig
