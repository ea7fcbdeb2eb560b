#!/usr/bin/env bash
# Makes a Docker engine available on this machine, or says what a person has to do.
#
#   scripts/engine.sh        exit 0: `docker version` answers; 3: it cannot be made to; 1: a step failed
#
# Idempotent: where an engine already answers nothing is touched. Root on Debian or Ubuntu is the only
# place where it installs anything; there it leaves dockerd running, under systemd where that runs and
# in a session of its own elsewhere (containers, CI runners, minimal virtual machines).
set -euo pipefail

LOG=${BEIGE_DOCKERD_LOG:-/var/log/beige-dockerd.log}
PIDFILE=/var/run/docker.pid
CONTAINERD_PIDFILE=/var/run/docker/containerd/containerd.pid
START_DEADLINE_S=60
export DEBIAN_FRONTEND=noninteractive

say() { printf 'engine: %s\n' "$*" >&2; }

answers() { timeout 10 docker version >/dev/null 2>&1; }

give_up() {
    say "no Docker engine answers, and this script can install one only as root on Debian or Ubuntu."
    say "what to do:"
    say "  - engine installed but stopped:   sudo systemctl start docker"
    say "  - engine running, no permission:  sudo usermod -aG docker \"\$USER\", then log in again"
    say "  - no engine:                      sudo $0, or Docker's own installation guide"
    say "  - engine on another machine:      export DOCKER_HOST=ssh://user@host"
    exit 3
}

is_debian() { [ -r /etc/debian_version ] && command -v apt-get >/dev/null; }

runs_systemd() { [ -d /run/systemd/system ]; }

missing_packages() {
    command -v dockerd >/dev/null || echo docker.io
    command -v iptables >/dev/null || echo iptables
    command -v mmdebstrap >/dev/null || echo mmdebstrap
}

install() {
    say "installing $*"
    if ! apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null; then
        say "apt-get could not install $*"
        exit 1
    fi
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_packages)
    if [ ${#missing[@]} -gt 0 ]; then
        # Rebuilding the manual's index costs as much as the rest of the installation.
        rm -f /var/lib/man-db/auto-update
        # A broken third-party source must not stop us: the packages may still be found in the others.
        apt-get update -qq >/dev/null 2>&1 || say "apt-get update reported errors, going on"
        install "${missing[@]}"
    fi
    # Part of docker.io in Debian 12, a package of its own since 13.
    command -v docker >/dev/null || install docker-cli
}

dockerd_pid() { pidof dockerd 2>/dev/null || true; }

# pidof leaves zombies out.
forget_dead_containerd() {
    local named
    named=$(cat "$CONTAINERD_PIDFILE" 2>/dev/null) || return 0
    if ! pidof containerd 2>/dev/null | tr ' ' '\n' | grep -qxF -- "$named"; then
        rm -f "$CONTAINERD_PIDFILE"
    fi
}

start_by_hand() {
    if ! [ -d /sys/fs/cgroup/memory ] && ! [ -f /sys/fs/cgroup/cgroup.controllers ]; then
        say "no cgroups are mounted under /sys/fs/cgroup: containers could not be limited here"
        exit 1
    fi
    # A pid file that survived a reboot or a kill -9 may name a stranger, or a process that is dead but not
    # reaped: dockerd would refuse to start, or wait for a containerd that never answers.
    rm -f "$PIDFILE"
    forget_dead_containerd
    say "starting dockerd, log in $LOG"
    setsid nohup dockerd >>"$LOG" 2>&1 </dev/null &
    disown
}

start_engine() {
    if runs_systemd; then
        say "starting docker.service"
        systemctl start docker
    elif [ -n "$(dockerd_pid)" ]; then
        say "dockerd is running but does not answer yet"
    else
        start_by_hand
    fi
}

wait_for_engine() {
    local end=$((SECONDS + START_DEADLINE_S)) started=$SECONDS
    until answers; do
        if [ "$SECONDS" -ge "$end" ]; then
            say "dockerd did not answer within ${START_DEADLINE_S} s"
            tail -n 20 "$LOG" >&2 2>/dev/null || true
            exit 1
        fi
        sleep 0.1
    done
    say "engine answers after $((SECONDS - started)) s"
}

main() {
    if answers; then
        say "an engine answers already"
        return
    fi
    # With DOCKER_HOST set the operator chose an engine: starting another one here would not help.
    if [ "$(id -u)" -ne 0 ] || [ -n "${DOCKER_HOST:-}" ] || ! is_debian; then
        give_up
    fi
    install_packages
    answers || start_engine
    wait_for_engine
}

main "$@"
