"""Touches `data/ledger.jsonl`: one event a line, each written whole before it counts.

A kill at any moment loses no event that was acknowledged: a line is in the file (the page cache) before
`append` returns, and on the disk within about a second. Growing for ever is prevented by writing the sums
to a new file that replaces the old one in one step. A torn last line was never acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from beige.errors import ConfigError, Unavailable
from services.policy.ledger import AnyEvent, Ledger

log = logging.getLogger("policy")
NAME = "ledger.jsonl"
MAX_LINE = 64 * 1024
REWRITE_BYTES = 4 * 1024 * 1024
"""More than this since the file was written anew: it is again."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyEvent).decode
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LedgerFile:
    """Used by one process at a time; a lock beside the file sees to it."""

    def __init__(self, path: Path, today: str, rewrite_bytes: int = REWRITE_BYTES) -> None:
        """Read, repair and shorten the file. ConfigError if it holds what is not the ledger's, or another
        policy process has it: better no model call than one that is not counted."""
        self._path, self._rewrite_bytes = path, rewrite_bytes
        self._lock = _lock(path.with_suffix(".lock"))
        self.ledger = Ledger()
        whole = 0
        for event, size in _read(path):
            self.ledger.apply(event)
            whole += size
        self._fd, self._size, self._begun_with, self._synced = -1, 0, 0, 0
        self._meanwhile: list[bytes] | None = None
        """Lines since a new file is being prepared: it needs them too."""
        summary = self._summary(today)
        try:
            self._swap(self._prepare(summary), len(summary))
        except OSError as error:  # a full disk: other calls than of models are still decided
            log.error("%s can't be written anew: %s", path.name, error.strerror)
            self._fd, self._size = os.open(path, _FLAGS, 0o600), whole
            os.ftruncate(self._fd, whole)

    def append(self, event: AnyEvent) -> None:
        """Unavailable if the disk doesn't take it; then the file and the ledger are as before."""
        line = _encode(event) + b"\n"
        try:
            _write(self._fd, line)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise Unavailable(f"the ledger of budgets can't be written: {error.strerror}") from None
        self._size += len(line)
        if self._meanwhile is not None:
            self._meanwhile.append(line)
        self.ledger.apply(event)

    async def tend(self, today: str) -> None:
        """Bring what was written to the disk, and begin a new file when this one has grown. Every second."""
        if self._size - self._begun_with > self._rewrite_bytes:
            await self._rewrite(today)
        elif self._size != self._synced:
            size, copy = self._size, os.dup(self._fd)
            try:
                await asyncio.to_thread(os.fdatasync, copy)
            finally:
                os.close(copy)
            self._synced = size

    async def _rewrite(self, today: str) -> None:
        summary, self._meanwhile = self._summary(today), []
        try:
            fd = await asyncio.to_thread(self._prepare, summary)
            later = b"".join(self._meanwhile)
            _write(fd, later)
            self._swap(fd, len(summary) + len(later))
        finally:
            self._meanwhile = None

    def _summary(self, today: str) -> bytes:
        return b"".join(_encode(event) + b"\n" for event in self.ledger.summary(today))

    def _prepare(self, data: bytes) -> int:
        """A new file beside the old one, on the disk. Blocks."""
        new = self._path.with_suffix(".new")
        new.unlink(missing_ok=True)
        fd = os.open(new, _FLAGS | os.O_EXCL, 0o600)
        try:
            _write(fd, data)
            os.fdatasync(fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _swap(self, fd: int, size: int) -> None:
        self._path.with_suffix(".new").replace(self._path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._begun_with, self._synced = fd, size, size, 0

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._lock)


def _read(path: Path) -> Iterable[tuple[AnyEvent, int]]:
    """Each event with its line's length in bytes."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if not line.endswith(b"\n") and not file.peek(1):
                log.warning("%s: the unfinished line %d never counted and is dropped", path.name, number)
                return
            try:
                yield _decode(line), len(line)
            except msgspec.MsgspecError as error:
                raise ConfigError(
                    str(path), f"line {number} is not the ledger's: {error}",
                    "mend it, or move the file away to begin with nothing used",
                ) from None  # fmt: skip


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ConfigError(str(path), "is held: another policy process runs for this home") from None
    return fd
