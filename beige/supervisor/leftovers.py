"""Finds and removes what a home's processes leave when nobody stopped them properly."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from beige.paths import Home

POLL_S = 0.02
KILL_S = 10.0


def processes(home: Home) -> list[int]:
    """Pids of this user's processes that were started for `home` by supervisord, and supervisord's.

    Told by their environment, which only their starter can write, or, since it can't be read in the
    moment of an exec, by being in the session that supervisord leads. Empty where there is no /proc.
    """
    mark = b"\0BEIGE_HOME=" + os.fsencode(home.root) + b"\0"
    everybody = dict(_environs())
    marked = {pid: environ for pid, environ in everybody.items() if mark in environ and _ours(environ)}
    leaders = {pid for pid, environ in marked.items() if _SUPERVISORD in environ and _session(pid) == pid}
    return sorted(pid for pid in everybody if pid in marked or _session(pid) in leaders)


_SUPERVISORD = b"\0BEIGE_ENV_DIR="


def _ours(environ: bytes) -> bool:
    return b"\0BEIGE_INSTANCE=" in environ or _SUPERVISORD in environ


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _environs() -> Iterator[tuple[int, bytes]]:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and int(path.name) != os.getpid():
                yield int(path.name), b"\0" + (path / "environ").read_bytes()


def end_processes(home: Home, grace_s: float) -> int:
    """SIGTERM, then after `grace_s` SIGKILL, until none is left. Returns how many there were."""
    found = processes(home)
    _signal(found, signal.SIGTERM)
    end = time.monotonic() + KILL_S
    if found and not wait_gone(home, grace_s):
        while (left := processes(home)) and time.monotonic() < end:
            _signal(left, signal.SIGKILL)
            time.sleep(POLL_S)
    return len(found)


def wait_gone(home: Home, timeout_s: float) -> bool:
    """Whether no process of `home` is left within `timeout_s`."""
    end = time.monotonic() + timeout_s
    while processes(home):
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_S)
    return True


def remove_sockets(home: Home) -> None:
    """Unlink sockets below run/ and the links to them. Only for a home without processes."""
    for path in home.run.rglob("*"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
    for path in (home.root / "sockets").glob("*.sock"):
        if path.is_symlink() and not path.exists():
            path.unlink(missing_ok=True)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
