#!/bin/sh
# Compiles the static programs: native.sh OUTPUT_DIR (sources beside this script).
#
# Runs on the host when that has a compiler and a static libc for the engine's architecture (half a
# second), else inside the `native` stage of the Dockerfile, which installs a compiler for it (a minute,
# and a network). Programs that lie in OUTPUT_DIR already are kept.
#   CC, CFLAGS   from the environment, for the sanitizer builds of the tests
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
cc=${CC:-gcc}
flags=${CFLAGS:--O2 -static -s -fstack-protector-strong -D_FORTIFY_SOURCE=2}

mkdir -p "$out"
programs="tool-client relay file"
missing=
for program in init $programs; do
    [ -x "$out/$program" ] || missing=yes
done
if [ -n "$missing" ]; then
    if ! command -v "$cc" >/dev/null; then
        [ -n "${BEIGE_IN_BUILDER:-}" ] || { echo "native.sh: no compiler ($cc)" >&2; exit 1; }
        apt-get update -q && apt-get install -q -y --no-install-recommends gcc libc6-dev
    fi
    # shellcheck disable=SC2086
    "$cc" -std=gnu11 -Wall -Wextra -Werror $flags -o "$out/init" "$here"/init/*.c
    for program in $programs; do
        # shellcheck disable=SC2086
        "$cc" -std=gnu11 -Wall -Wextra -Werror $flags -o "$out/$program" "$here/$program.c"
    done
fi
for program in init $programs; do
    chmod 755 "$out/$program"
done
