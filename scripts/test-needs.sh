#!/usr/bin/env bash
# Gets what only tests need: tmux, the real terminal of tests/e2e/test_real_terminal.py, and gVisor's runsc
# for tests/docker/test_gvisor.py. Where it can't, it says what is missing, and those tests are skipped (in
# CI: failed).
set -euo pipefail
cd "$(dirname "$0")/.."

get_tmux() {
    if command -v tmux >/dev/null; then return; fi
    # As root on Debian or Ubuntu.
    if [ "$(id -u)" -eq 0 ] && [ -r /etc/debian_version ] && command -v apt-get >/dev/null; then
        printf 'test-needs: installing tmux\n' >&2
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq >/dev/null 2>&1 || printf 'test-needs: apt-get update reported errors, going on\n' >&2
        apt-get install -y -qq --no-install-recommends tmux </dev/null >/dev/null || true
    fi
    command -v tmux >/dev/null || printf 'test-needs: tmux is missing; on Debian or Ubuntu: sudo apt-get install tmux\n' >&2
}

get_tmux
scripts/runsc.sh >/dev/null || printf 'test-needs: going on without gVisor\n' >&2
