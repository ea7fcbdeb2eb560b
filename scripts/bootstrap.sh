#!/usr/bin/env bash
# Sets the project up in this checkout: Python environment, packages, Docker engine, sandbox image.
#
#   scripts/bootstrap.sh                     exit 0: everything is there; 3: this machine needs a person
#   scripts/bootstrap.sh --without-engine    go on without a Docker engine if none can be had
#
# Idempotent; what is done already is skipped. Installs system packages only as root on Debian or Ubuntu;
# elsewhere it says what to install.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/.bootstrapped
NEEDS="Python 3.11 or newer with its venv module"

say() { printf 'bootstrap: %s\n' "$*" >&2; }

can_apt() { [ "$(id -u)" -eq 0 ] && [ -r /etc/debian_version ] && command -v apt-get >/dev/null; }

# Debian's python3 has no ensurepip until python3-venv is installed.
usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && usable "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

install_python() {
    if ! can_apt; then
        say "$NEEDS is missing. On Debian or Ubuntu: sudo apt-get install python3 python3-venv"
        exit 3
    fi
    say "installing python3 and python3-venv"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null 2>&1 || say "apt-get update reported errors, going on"
    apt-get install -y -qq --no-install-recommends python3 python3-venv </dev/null >/dev/null
    if ! find_python >/dev/null; then
        say "this system's python3 is older than 3.11: install a newer one, then run this again"
        exit 3
    fi
}

# Everything that decides what is in the environment, and where the checkout is: it is installed from here.
wanted_stamp() { { pwd; "$1" --version; cat pyproject.toml constraints.txt; } | sha256sum | cut -d' ' -f1; }

environment() {
    local python wanted
    if [ -x $VENV/bin/python ] && $VENV/bin/python -c '' 2>/dev/null; then
        python=$VENV/bin/python
    else
        find_python >/dev/null || install_python
        python=$(find_python)
    fi
    wanted=$(wanted_stamp "$python")
    if [ -x $VENV/bin/beige ] && [ "$(cat $STAMP 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if [ "$python" != $VENV/bin/python ]; then
        say "making $VENV with $("$python" --version)"
        "$python" -m venv --clear $VENV
    fi
    say "installing packages"
    $VENV/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
    echo "$wanted" >$STAMP
}

engine() {
    local code=0
    scripts/engine.sh || code=$?
    if [ $code -eq 0 ]; then
        $VENV/bin/beige image build
        # Tests of the profile open need it; everybody else builds it when an agent does.
        if [ -n "${CI:-}" ]; then $VENV/bin/beige image build --profile open; fi
    elif [ "$1" = optional ]; then
        say "going on without a Docker engine: tests that need one will be skipped"
    else
        exit $code
    fi
}

main() {
    local engine=required
    case "${1:-}" in
        "") ;;
        --without-engine) engine=optional ;;
        *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    mkdir -p .cache
    # Two at once would install into the same directory.
    exec 9>.cache/bootstrap.lock
    if command -v flock >/dev/null; then flock 9; fi
    environment
    engine $engine 9>&-
}

main "$@"
