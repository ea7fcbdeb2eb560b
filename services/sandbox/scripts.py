"""What read, write and patch run in the container, and what the exit codes mean.

A program costs a millisecond to start, so our image has one that does it all (`image/file.c`). Other images
get the same as scripts: POSIX sh and coreutils or busybox, which start few programs. Paths arrive as
arguments, absolute, and are only ever used inside double quotes: nothing of them is ever parsed.
Test: `tests/docker/test_sandbox_files.py`, with both.
"""

from __future__ import annotations

from dataclasses import dataclass

from beige.errors import BeigeError, Failed, NotFound, TooLarge
from services.sandbox.channel import Exit
from services.sandbox.failure import last_line

MISSING, DIRECTORY, SPECIAL, FORBIDDEN, CHANGED, SHORT, BROKEN = 90, 91, 92, 93, 94, 95, 96
FILE_LIMIT_SIGNAL = 25  # SIGXFSZ

PROGRAM = "/beige/file"
PROGRAM_USAGE = 2
"""Its exit code without arguments."""


@dataclass(frozen=True)
class Step:
    script: str
    native: str = ""
    """What PROGRAM calls it; empty: it can't do it."""


# path, most bytes -> the file's size, a newline, its first bytes
READ = Step(
    native="read",
    script=f"""
f=$1
[ -e "$f" ] || exit {MISSING}
[ -d "$f" ] && exit {DIRECTORY}
[ -f "$f" ] || exit {SPECIAL}
[ -r "$f" ] || exit {FORBIDDEN}
stat -L -c %s -- "$f" || exit {BROKEN}
exec head -c "$2" -- "$f"
""",
)

# path, first line, number of lines, most bytes -> those lines
LINES = Step("""
tail -n "+$2" -- "$1" | head -n "$3" | head -c "$4"
""")

# The file a path stands for, and its directory. A symlink is followed, as a plain write would.
_RESOLVE = f"""
f=$1
if [ -L "$f" ]; then
  r=$(readlink -f -- "$f" && printf x) || exit {MISSING}
  f=${{r%?x}}
fi
d=${{f%/*}}
"""

_WRITE = f"""
umask 022
{_RESOLVE}
[ -d "$f" ] && exit {DIRECTORY}
new=1 mode=644
if [ -e "$f" ]; then
  [ -f "$f" ] || exit {SPECIAL}
  [ -w "$f" ] || exit {FORBIDDEN}
  new=0 mode=$(stat -c %a -- "$f") || exit {BROKEN}
fi
[ -d "${{d:-/}}" ] || mkdir -p -- "${{d:-/}}" || exit {BROKEN}
t=$d/$2
drop() {{ rm -f -- "$t"; exit "$1"; }}
set -C
cat >"$t" || drop {BROKEN}
[ "$(wc -c <"$t")" -eq "$3" ] || drop {SHORT}
if [ -n "$4" ]; then
  sum=$(sha256sum <"$f") || drop {CHANGED}
  [ "${{sum%% *}}" = "$4" ] || drop {CHANGED}
fi
[ "$mode" = 644 ] || chmod -- "$mode" "$t" || drop {BROKEN}
mv -f -- "$t" "$f" || drop {BROKEN}
echo "$new"
"""
# path, name of the temporary file, size -> 1 if it is new, 0 if there was one
WRITE = Step(_WRITE, native="write")
# path, name of the temporary file, size, SHA-256 the file must have now -> the same
REPLACE = Step(_WRITE)

# path, name of the temporary file
CLEAN = Step(f"""
{_RESOLVE}
rm -f -- "$d/$2"
""")


def argv(step: Step, *arguments: str, native: bool) -> tuple[str, ...]:
    """`native`: the image has PROGRAM."""
    if native and step.native:
        return (PROGRAM, step.native, *arguments)
    return ("/bin/sh", "-c", step.script, "sh", *arguments)


def error_of(ended: Exit, path: str) -> BeigeError | None:
    """What the exit of a script says about `path`; None if it succeeded."""
    if ended.timed_out:
        return Failed(f"{path}: the file system did not answer in time")
    match ended.status:
        case 0:
            return None
        case 90:
            return NotFound(f"{path}: no such file")
        case 91:
            return Failed(f"{path}: is a directory", executed="no")
        case 92:
            return Failed(f"{path}: is not a regular file", executed="no")
        case 93:
            return Failed(f"{path}: permission denied", executed="no")
        case 94:
            return Failed(f"{path}: was changed meanwhile; read it again", executed="no")
        case 95:
            return Failed(f"{path}: was not written completely", executed="no")
    if ended.status == -FILE_LIMIT_SIGNAL:
        return TooLarge(f"{path}: over the sandbox's limit for one file")
    reason = last_line(bytes(ended.stderr.head).decode("utf-8", "replace"))
    return Failed(f"{path}: {reason}", executed="no" if ended.status > 0 else "maybe")
