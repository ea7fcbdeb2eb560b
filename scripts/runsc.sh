#!/usr/bin/env bash
# Fetches gVisor's runsc into a cache, for the tests that start containers in it, and prints its path.
#
#   scripts/runsc.sh        exit 0: it is there; 3: this machine can't have it this way, and why
#
# Debian 12's own runsc can't run `ls`, so the package comes from the suite after it, from the mirror that
# apt uses here, through an apt state of our own: apt checks Debian's signature, and nothing is installed.
# Idempotent; a second run costs a fraction of a second.
set -euo pipefail

TARGET=${XDG_CACHE_HOME:-$HOME/.cache}/beige/runsc/runsc
SUITE=trixie
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf 'runsc: %s\n' "$*" >&2; }

give_up() {
    say "$*"
    say "fetch it as https://gvisor.dev/docs/user_guide/install says, and put it at $TARGET"
    exit 3
}

works() { [[ $("$1" --version 2>/dev/null) == "runsc version "* ]]; }

# Where this machine's own packages come from; a mirror that isn't Debian's fails at the signature.
mirrors() {
    local release
    # shellcheck disable=SC1091 -- which file it is depends on the machine
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v release="$release" '$2 == release && $3 == "main" {print $1}' | sort -u
}

own_apt() {
    apt-get -qq -o Dir::State="$WORK/state" -o Dir::State::status=/dev/null -o Dir::Cache="$WORK/cache" \
        -o Dir::Etc::sourcelist="$WORK/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o Acquire::Languages=none -o Acquire::Retries=3 -o Acquire::http::Timeout=30 "$@"
}

fetch_from() {
    echo "deb [signed-by=$KEYRING] $1 $SUITE main" >"$WORK/sources.list"
    # APT::Update::Error-Mode: an index that can't be had is an error, not a warning.
    own_apt -o APT::Update::Error-Mode=any update >&2 && (cd "$WORK/deb" && own_apt download runsc >&2)
}

unpack() {
    mkdir -p "${TARGET%/*}"
    dpkg-deb --fsys-tarfile "$WORK"/deb/runsc_*.deb | tar -xO ./usr/bin/runsc >"$WORK/runsc"
    chmod 755 "$WORK/runsc"
    works "$WORK/runsc" || give_up "what was fetched does not run here"
    # Two may do this at once: rename, on the cache's own file system.
    cp "$WORK/runsc" "$TARGET.$$"
    mv "$TARGET.$$" "$TARGET"
}

main() {
    local mirror
    if works "$TARGET"; then
        echo "$TARGET"
        return
    fi
    if ! [ -r "$KEYRING" ] || ! command -v apt-get >/dev/null; then
        give_up "gVisor is fetched on Debian only ($KEYRING is not here)"
    fi
    say "fetching runsc of Debian $SUITE"
    WORK=$(mktemp -d)
    trap 'rm -rf "$WORK"' EXIT
    mkdir -p "$WORK"/{state,cache,deb}
    # apt fetches as a user of its own, when root calls it.
    chmod 711 "$WORK"
    chown _apt "$WORK/deb" 2>/dev/null || true
    for mirror in $(mirrors); do
        if fetch_from "$mirror"; then
            unpack
            echo "$TARGET"
            return
        fi
        say "not from $mirror"
    done
    give_up "no package source of this machine has it (apt's messages are above)"
}

main "$@"
