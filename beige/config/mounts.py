"""Decides which directories and files of the host an agent's container may see besides its own.

A mount is a hole in the wall that the operator makes on purpose. Refused is what would give power away
with it: the engine's socket, what root or beige's own processes run or read, keys, other agents' files.
Paths are judged as written, as they resolve, and by inode, so that neither a symbolic link nor a bind mount
of a guarded directory leads around it (`tests/attacks/test_extra_mounts.py`). What can be judged by name
only stays a list: a secret under an ordinary name is the operator's to keep out.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from beige.config.problems import Location, Problem
from beige.paths import Home

LISTED = 10_000
"""Entries of a directory that are looked at for sockets and credentials."""

HOST = {
    "/etc": "the host's accounts, keys and settings",
    "/proc": "the host's processes",
    "/sys": "the host's kernel settings",
    "/dev": "the host's devices",
    "/root": "root's files",
    "/boot": "the host's kernel",
    "/run": "sockets of the host's services",
    "/var/run": "sockets of the host's services",
    "/var/lib/docker": "the engine's own files",
    "/var/lib/containerd": "the engine's own files",
    "/var/lib/kubelet": "the engine's own files",
    "/var/spool": "jobs that the host runs",
    "/var/log": "the host's logs",
}
"""Not even read-only, neither they nor what is in them."""
PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/var/lib", "/var/cache", "/opt")
"""What root runs sooner or later: read-only at most."""
SHARED = ("/tmp", "/var/tmp")  # noqa: S108 - named to be refused
"""Where every user of the host can plant links and sockets: not they themselves."""
CREDENTIALS = frozenset({
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".pgpass", ".git-credentials"),
    *("id_rsa", "id_ecdsa", "id_ed25519", "id_dsa", "authorized_keys", "docker.sock", "containerd.sock"),
})  # fmt: skip
KEY_FILES = (".pem", ".key", ".p12", ".pfx", ".env")

OURS = ("workspace", "tools", "run", "beige")
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "sys", "dev", "tmp", "var",
          "home", "root", "boot")  # fmt: skip
INSTEAD = "mount it below /mnt, /data or /srv"


@dataclass(frozen=True)
class Mount:
    source: str
    """Resolved: what the engine is told, so that a link changed later changes nothing."""
    target: str
    read_only: bool


@dataclass(frozen=True)
class Guard:
    path: Path
    why: str
    read_only_is_fine: bool = False


@dataclass(frozen=True)
class _Wanted:
    agent: str
    at: Location
    source: str
    target: str
    read_only: bool

    @property
    def resolved(self) -> Path:
        """A NUL would end realpath; it is refused by name."""
        return Path(os.path.realpath(self.source.replace("\0", "?")))


def examine_mounts(
    raw: Mapping[str, Any], home: Home, environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, tuple[Mount, ...]], list[Problem]]:
    """Per agent the mounts that may be made, and what is wrong with the others. Entries of the wrong shape
    are left to `validation`. Blocking."""
    wanted = list(_wanted(raw))
    guarded = guards(raw, home, environ)
    mounts: dict[str, tuple[Mount, ...]] = {}
    problems: list[Problem] = []
    for one in wanted:
        found = [*_check_source(one, guarded), *_check_target(one, wanted), *_check_overlap(one, wanted)]
        problems += found
        if not found:
            made = Mount(str(one.resolved), one.target, one.read_only)
            mounts[one.agent] = (*mounts.get(one.agent, ()), made)
    return mounts, problems


def _wanted(raw: Mapping[str, Any]) -> Iterator[_Wanted]:
    for agent, value in _object(raw.get("agents")).items():
        entries = _object(_object(value).get("sandbox")).get("extraMounts")
        for index, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
            source, target = _object(entry).get("source"), _object(entry).get("target")
            read_only = _object(entry).get("readOnly", True)
            if isinstance(source, str) and isinstance(target, str) and "${" not in source + target:
                at = ("agents", agent, "sandbox", "extraMounts", index)
                yield _Wanted(agent, at, source, target, read_only is not False)


def guards(raw: Mapping[str, Any], home: Home, environ: Mapping[str, str]) -> tuple[Guard, ...]:
    """All that is guarded on this host, for this installation."""
    found = [Guard(Path(path), why) for path, why in HOST.items()]
    # The audit log, the keys, the bus, every agent's workspace and sockets.
    found += [Guard(path, "beige's own files") for path in (home.root, home.run)]
    host = environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        found.append(Guard(Path(host.removeprefix("unix://")), "the Docker socket"))
    found += [Guard(Path(path), "what the host runs", True) for path in PROGRAMS]
    # An agent that may change our code, or a plugin's, is the gateway the next time it starts.
    found.append(Guard(Path(__file__).resolve().parents[2], "beige's own code", True))
    for plugin in _object(raw.get("plugins")).values():
        path = _object(plugin).get("path")
        if isinstance(path, str) and not path.startswith("bundled:") and "${" not in path:
            found.append(Guard(home.config.parent / path, "a plugin's code", True))
    return tuple(found)


# --- sources ------------------------------------------------------------------------------------------


def _check_source(one: _Wanted, guarded: tuple[Guard, ...]) -> Iterator[Problem]:
    at = (*one.at, "source")
    if not one.source.startswith("/") or "\0" in one.source:
        yield Problem(at, "is no absolute path", "write it from / on")
        return
    try:
        info = one.resolved.stat()
    except OSError as error:
        yield Problem(at, f"{one.source!r} can't be used: {error.strerror}", "create it, or remove the mount")
        return
    for refused in (_guarded(one, guarded), _personal(one), _kind(one, info)):
        if refused is not None:
            via = "" if str(one.resolved) == one.source else f" (it leads to {str(one.resolved)!r})"
            yield Problem(at, f"{one.source!r}{via} {refused[0]}", refused[1])
            return


def _guarded(one: _Wanted, guarded: tuple[Guard, ...]) -> tuple[str, str] | None:
    written = Path(os.path.normpath(one.source))
    known = {identity: guard for guard in guarded if (identity := _identity(guard.path))}
    for path in (written, one.resolved):
        for guard in guarded:
            real = Path(os.path.realpath(guard.path))
            if guard.read_only_is_fine and one.read_only:
                continue
            if any(_within(path, g) or _within(g, path) for g in (guard.path, real)):
                return _refusal(path, guard)
        # The same directory under another name: a bind mount of the host's.
        for parent in (path, *path.parents):
            same = known.get(_identity(parent) or (0, 0))
            if same is not None and not (same.read_only_is_fine and one.read_only):
                return _refusal(path, same)
    if str(one.resolved) in SHARED:
        return "is where every user of the host can plant links and sockets", "mount a directory of its own"
    return None


def _refusal(path: Path, guard: Guard) -> tuple[str, str]:
    relation = "contains" if _within(guard.path, path) and path != guard.path else "is or lies in"
    fix = "mount it read-only, or another directory" if guard.read_only_is_fine else "mount another directory"
    return f"{relation} {str(guard.path)!r}: {guard.why}", fix


def _personal(one: _Wanted) -> tuple[str, str] | None:
    """A person's home, and in it what begins with a dot: keys, tokens, what a shell runs at login."""
    path = one.resolved
    for home in {Path(pwd.getpwuid(os.getuid()).pw_dir), *Path("/home").glob("*")}:
        if _within(home, path):
            return f"contains the home directory {str(home)!r}", "mount a directory in it"
        if _within(path, home) and path.relative_to(home).parts[0].startswith("."):
            return "is among a person's settings and keys", "mount another directory"
    return None


def _kind(one: _Wanted, info: os.stat_result) -> tuple[str, str] | None:
    path = one.resolved
    hidden = sorted(CREDENTIALS & set(path.parts))
    if hidden or path.name.endswith(KEY_FILES):
        return f"holds keys, by its name ({hidden[0] if hidden else path.name})", "mount another directory"
    if not (stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode)):
        return "is neither a directory nor a file", "sockets and devices are not mounted"
    found = _inside(path) if stat.S_ISDIR(info.st_mode) else ""
    return (f"holds {found}", "move it elsewhere, or mount a directory below") if found else None


def _inside(path: Path) -> str:
    """The first thing directly in the directory that gives power away."""
    with os.scandir(path) as entries:
        for _, entry in zip(range(LISTED), entries, strict=False):
            if entry.name in CREDENTIALS:
                return f"the keys {entry.name!r}"
            with suppress(FileNotFoundError):  # it went away meanwhile
                if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    return f"the socket {entry.name!r}"
    return ""


# --- targets --------------------------------------------------------------------------------------------


def _check_target(one: _Wanted, wanted: list[_Wanted]) -> Iterator[Problem]:
    """Nothing of ours and nothing of the system's is hidden: a mount over /beige or /usr would decide what
    later commands, and our own, run."""
    at, target = (*one.at, "target"), PurePosixPath(one.target)
    if not one.target.startswith("/") or one.target != os.path.normpath(one.target) or "\0" in one.target:
        yield Problem(at, f"{one.target!r} is no plain absolute path", INSTEAD)
    elif len(target.parts) < 2 or target.parts[1] in OURS + SYSTEM:
        what = "beige's own" if len(target.parts) > 1 and target.parts[1] in OURS else "the image's own"
        yield Problem(at, f"{one.target!r} would hide {what} files", INSTEAD)
    for other in wanted:
        if other is one or other.agent != one.agent:
            continue
        if _within(target, PurePosixPath(other.target)):
            yield Problem(at, f"{one.target!r} is, or lies in, another mount's target", "keep them apart")
            return


def _check_overlap(one: _Wanted, wanted: list[_Wanted]) -> Iterator[Problem]:
    """What lies in a directory that an agent may write can be replaced by a link to anywhere between our
    look at it and the engine's."""
    for other in wanted:
        above = other.resolved
        if not other.read_only and above != one.resolved and _within(one.resolved, above):
            yield Problem(
                (*one.at, "source"),
                f"{one.source!r} lies in {str(above)!r}, which agent {other.agent!r} may change",
                "mount the upper directory itself, or make it readOnly",
            )
            return


def _within(path: PurePath, parent: PurePath) -> bool:
    return path == parent or parent in path.parents


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
