"""Touches session files to read them: whole lines, in bounded pieces. For threads."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from beige.errors import Failed, NotFound

PIECE = 1024 * 1024
MAX_LINE = 64 * 1024 * 1024
"""Bytes. Far above what is ever written; a longer line is damage."""


def open_session(path: Path) -> int:
    """Read-only. Links and pipes in a session's place are neither followed nor waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(f"no such session: {path.name.removesuffix('.jsonl')!r}") from None
    except OSError as error:
        raise Failed(f"its file can't be read: {error.strerror}", executed="no") from error
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise Failed("its file is not a file", executed="no")


def lines(fd: int, offset: int) -> Iterator[tuple[bytes, int]]:
    """Whole lines from `offset` on, without their newline, each with the place after it."""
    rest = b""
    at = offset
    while piece := os.pread(fd, PIECE, at):
        at += len(piece)
        *whole, rest = (rest + piece).split(b"\n")
        place = at - len(rest) - sum(len(line) + 1 for line in whole)
        for line in whole:
            place += len(line) + 1
            yield line, place
        if len(rest) > MAX_LINE:
            raise Failed(f"a line of its file is longer than {MAX_LINE} bytes", executed="no")


def span(fd: int, after: int) -> tuple[int, int, int]:
    """Where the lines after the first `after` begin, where the last whole line ends, how many there are."""
    size = os.fstat(fd).st_size
    begin = at = end = 0
    passed = 0
    while at < size and (piece := os.pread(fd, PIECE, at)):
        here = piece.count(b"\n")
        if passed < after <= passed + here:
            begin = at + _nth_newline(piece, after - passed) + 1
        passed += here
        if here:
            end = at + piece.rfind(b"\n") + 1
        at += len(piece)
    return (end if after > passed else begin), end, passed


def _nth_newline(piece: bytes, n: int) -> int:
    at = -1
    for _ in range(n):
        at = piece.index(b"\n", at + 1)
    return at


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
