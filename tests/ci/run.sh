#!/usr/bin/env bash
# All checks and tests, a step each: run.sh tools|check|docs|artefact|lab|demo|e2e|molecule|test|bench|full PART
# Caches lie outside the checkout (DGXSPARK_CACHE) and may be missing.
set -euo pipefail

checkout=$(cd "$(dirname "$0")/../.." && pwd)
cache=${DGXSPARK_CACHE:-/var/cache/dgxspark-ci}
scenarios=(preflight image_selection staging service_teardown ray_cluster vllm_serve default)
cd "$checkout"

say() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }

# The tools in a virtual environment of their own, made again when the list of tools changes.
tools() {
    if ! python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv >/dev/null
    fi
    local tool
    for tool in shellcheck git ssh rsync nft; do
        if ! command -v "$tool" >/dev/null; then
            apt-get update -qq
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq shellcheck git openssh-client rsync nftables >/dev/null
        fi
    done
    local wanted
    wanted=$( (cat tests/requirements.txt; python3 --version) | sha256sum | cut -c1-12)
    venv=$cache/venv-$wanted
    if [ ! -e "$venv/complete" ]; then
        say "installing the tools into $venv"
        mkdir -p "$cache"
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install -qq --requirement tests/requirements.txt
        touch "$venv/complete"
    fi
    python_version=$("$venv/bin/python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
    export PATH="$venv/bin:$PATH"
    # git refuses a checkout of another user, and ansible-lint asks git for its files.
    export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
}

# Everything that needs no Docker.
check() {
    say "ruff"
    ruff check .
    ruff format --check --quiet .
    say "mypy"
    mypy plugins
    say "yamllint, shellcheck"
    yamllint -s .
    find . -name '*.sh' -not -path './build/*' -not -path './.venv/*' -print0 | xargs -0 shellcheck .ci/run
    say "changelog"
    antsibull-changelog lint
    say "documentation"
    antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs self .
    pytest tests/ci
    say "unit tests"
    pytest tests/unit
    say "ansible-lint"
    ansible-lint --strict
}

# What is shipped: built and installed into an empty folder, outside the checkout: ansible-test takes its list of files from git when
# there is one above it.
build_artefact() {
    say "building and installing the artefact"
    artefact=$cache/artefact
    rm -rf "$artefact"
    ansible-galaxy collection build --force --output-path "$artefact" >/dev/null
    ansible-galaxy collection install --force --no-deps -p "$artefact/tree" "$artefact"/dgxspark-serving-*.tar.gz >/dev/null 2>&1
}

# The shipped files, tested where they were installed: ansible_test PYTHON_VERSION.
ansible_test() {
    # ansible-test fetches an installer of pip that is not on PyPI: this stand-in takes the interpreter's own.
    local home=$cache/home
    mkdir -p "$home/.ansible/test/cache"
    cp tests/ci/get_pip_stub.py "$home/.ansible/test/cache/get_pip_24_2.py"
    cp tests/ci/get_pip_stub.py "$home/.ansible/test/cache/get_pip_25_2.py"
    (
        cd "$artefact/tree/ansible_collections/dgxspark/serving"
        say "ansible-test sanity on the artefact: $(ansible --version | head -1), Python $1"
        HOME=$home ansible-test sanity --local --python "$1"
        say "ansible-test units on the artefact"
        HOME=$home ansible-test units --local --python "$1"
    )
}

artefact() {
    build_artefact
    ansible_test "$python_version"
}

# Another environment beside the tools: environment NAME PYTHON PACKAGE...
environment() {
    local folder=$cache/$1 python=$2
    shift 2
    if [ "$(cat "$folder/complete" 2>/dev/null)" != "$*" ]; then
        say "installing $*"
        rm -rf "$folder"
        "$python" -m venv "$folder"
        "$folder/bin/pip" install -qq "$@"
        echo "$*" >"$folder/complete"
    fi
}

# The site of the documentation, in build/docs/html. A warning ends it: a link that leads nowhere, an option that is not there.
docs() {
    environment venv-docs python3 ansible-core==2.19.14 antsibull-docs==2.28.0 sphinx==9.0.4 myst-parser==5.2.0 sphinx-ansible-theme==0.10.4 \
        ansible-pygments==0.1.2
    say "documentation: the site"
    rm -rf build/docs
    local with=(env "PATH=$cache/venv-docs/bin:$PATH" "ANSIBLE_COLLECTIONS_PATH=$checkout/.collections")
    python3 tests/ci/docs_site.py build/docs/source
    mkdir build/docs/source/collection
    "${with[@]}" antsibull-docs collection --use-current --squash-hierarchy --fail-on-error --dest-dir build/docs/source/collection \
        dgxspark.serving
    "${with[@]}" sphinx-build -q -W --keep-going -c docs/site build/docs/source build/docs/html
    echo "build/docs/html/index.html"
}

# A Python that the newest ansible-core runs on (3.12 or newer), of the PATH or of pyenv.
newer_python() {
    local found
    for found in python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[23]*/bin/python3; do
        if "$found" -c 'import ensurepip' 2>/dev/null; then
            command -v "$found"
            return
        fi
    done
    echo "PART=matrix needs Python 3.12 or 3.13 with ensurepip" >&2
    return 1
}

# The newest ansible-core, and what Ansible Galaxy does with an upload.
matrix() {
    build_artefact
    local python
    python=$(newer_python)
    environment venv-newest "$python" ansible-core==2.21.5 pytest==9.2.0 pytest-mock==3.17.0 pytest-xdist==3.8.0 \
        jinja2==3.1.6 docker==7.2.0 requests==2.34.2 huggingface_hub==1.10.2 pyyaml
    (
        export PATH=$cache/venv-newest/bin:$PATH
        ansible_test "$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')"
        say "syntax of the playbooks"
        ansible-playbook --syntax-check -i inventories/spark_inventory deploy_qwen35.yml playbooks/*.yml
    )
    # galaxy-importer pins packages that the other tools need newer.
    environment venv-importer python3 galaxy-importer==0.4.44
    say "galaxy-importer"
    (
        cd "$artefact"
        "$cache/venv-importer/bin/python" -m galaxy_importer.main "$(basename "$artefact"/dgxspark-serving-*.tar.gz)"
    )
}

lab_up() {
    say "bringing up the lab"
    python3 tests/lab/lab.py up
}

e2e() {
    say "end to end: $*"
    (cd tests/e2e && pytest -p no:cacheprovider --tb=short --show-capture=no "$@")
}

scenario_tests() {
    local name
    for name in "$@"; do
        say "molecule: $name"
        molecule test -s "$name"
    done
}

demo() {
    lab_up
    say "deploying"
    ansible-playbook deploy_qwen35.yml -i inventories/lab_inventory
}

everything() {
    # The lab is built while the checks run: the one waits for downloads and disks, the other computes.
    (python3 tests/lab/lab.py up) >"$cache/lab.log" 2>&1 &
    local lab=$!
    check
    docs
    artefact
    say "waiting for the lab"
    wait "$lab" || {
        cat "$cache/lab.log"
        exit 1
    }
    e2e test_10_bad_input.py test_20_deployment.py test_90_packaging.py
    scenario_tests "${scenarios[@]}"
    say "all passed"
}

# registry_probe on real packages, a real registry and the complete image of the lab, which must be up.
registry() {
    if ! command -v docker-registry >/dev/null || ! command -v htpasswd >/dev/null || ! command -v openssl >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq docker-registry apache2-utils openssl >/dev/null
    fi
    lab_up
    say "registry_probe on the real thing"
    (cd tests/registry && DGXSPARK_CACHE=$cache pytest -q -p no:cacheprovider --tb=short --show-capture=no)
}

# Debian's registry is only needed by tests and benchmarks.
registry_program() {
    if ! command -v docker-registry >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq docker-registry >/dev/null
    fi
}

bench() {
    local part=${PART:-all}
    lab_up
    if [ "$part" = all ] || [ "$part" = probe ]; then
        say "benchmark: registry_probe"
        DGXSPARK_CACHE=$cache python3 tests/bench/registry_probe.py
    fi
    if [ "$part" = all ] || [ "$part" = overhead ]; then
        say "benchmark: overhead of a deployment"
        python3 tests/bench/overhead.py
    fi
    if [ "$part" = all ] || [ "$part" = staging ]; then
        say "benchmark: staging"
        registry_program
        python3 tests/lab/lab.py up --hosts 4
        python3 tests/bench/staging.py
    fi
}

# Staging against the real huggingface_hub, rsync, a real registry and the engines of the lab.
staging() {
    registry_program
    say "staging: the hub"
    (cd tests/staging && pytest -q -p no:cacheprovider --tb=short test_10_hub.py)
    lab_up
    say "staging: the lab"
    (cd tests/staging && pytest -q -p no:cacheprovider --tb=short --show-capture=no test_20_lab.py)
}

full() {
    case "${1:-}" in
    faults)
        lab_up
        e2e test_65_faults.py
        ;;
    gates)
        lab_up
        e2e test_30_gates.py
        ;;
    matrix)
        matrix
        ;;
    molecule)
        lab_up
        scenario_tests "${scenarios[@]}"
        ;;
    registry)
        registry
        ;;
    rollback)
        lab_up
        e2e test_50_rollback.py
        ;;
    serving)
        lab_up
        e2e test_60_serving.py
        ;;
    mp)
        lab_up
        e2e test_70_mp.py
        ;;
    sglang)
        lab_up
        e2e test_80_sglang.py
        ;;
    sizes)
        lab_up
        e2e test_75_sizes.py
        ;;
    packaging)
        lab_up
        e2e test_90_packaging.py
        ;;
    preflight)
        lab_up
        e2e test_40_preflight.py
        say "preflight against ping"
        python tests/bench/preflight.py
        ;;
    staging)
        staging
        ;;
    walk)
        e2e test_95_walk.py
        ;;
    *)
        echo "make test-full PART=...: faults, gates, matrix, molecule, mp, packaging, preflight, registry, rollback, serving, sglang, sizes, staging, walk" >&2
        exit 2
        ;;
    esac
}

step=${1:?"a step: tools, check, docs, artefact, lab, demo, e2e, molecule, test, bench or full"}
shift
tools
case "$step" in
tools) echo "$venv" ;;
check) check ;;
docs) docs ;;
artefact) artefact ;;
lab) lab_up ;;
demo) demo ;;
e2e) lab_up && e2e "$@" ;;
molecule) lab_up && scenario_tests "${@:-${scenarios[@]}}" ;;
test) everything ;;
bench) bench ;;
full) full "$@" ;;
*)
    echo "unknown step: $step" >&2
    exit 2
    ;;
esac
