"""Touches `logs/audit.jsonl`: appends whole lines, never loses one it acknowledged, never deletes.

With sync "written" a line is in the kernel's hands when `append` returns. With "disk" there is group
commit: lines appended in one turn of the loop leave in one write(), and are on disk (fdatasync, in a
thread) before any of them is acknowledged.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from beige.auditlog import rotated_name
from beige.errors import ConfigError

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_BLOCK = 64 * 1024


class Journal:
    """One append-only file and its rotation. Used from one event loop; `append` keeps order."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        sync: Literal["written", "disk"] = "written",
        log: logging.Logger | None = None,
    ) -> None:
        """Open and repair the log. ConfigError if another process writes it, OSError if it can't be
        opened."""
        self.path = path
        self._max_bytes = max_bytes
        self._sync = sync
        self._log = log or logging.getLogger("audit")
        self._lock = _lock(path.with_suffix(".lock"))
        self._fd = -1
        self._size = 0
        self._torn = False
        self._open()
        self._repair()
        self._lines: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._scheduled = False
        self._dirty = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    # --- for the service -----------------------------------------------------------------------

    def append(self, line: bytes) -> asyncio.Future[None] | None:
        """Keep one line (with its newline). None: it is written, and `sync` asks for no more. Otherwise the
        future is done when it is on disk; cancelling it doesn't take the line back.

        OSError, raised here or by the future, is what prevented it; then the file holds nothing of it.
        """
        if self._sync == "written":
            # To the page cache, a copy in memory; it waits only when the disk can't keep up, and then the
            # corridor has to wait as well.
            self._write(line)
            self._dirty = True
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._lines.append(line)
        self._waiting.append(future)
        self._schedule(loop)
        return future

    async def sync(self) -> None:
        """Bring what was written to the disk; and notice a log that was moved away by hand."""
        self._follow()
        if not self._dirty:
            return
        self._dirty = False
        copy = os.dup(self._fd)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, os.fdatasync, copy)
        finally:
            os.close(copy)

    async def close(self) -> None:
        """Write what is queued, sync, release the log."""
        while self._scheduled or self._flushing:
            await (self._flushing or asyncio.sleep(0))
        await self.sync()
        self._thread.shutdown()
        os.close(self._fd)
        os.close(self._lock)

    # --- groups --------------------------------------------------------------------------------

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._scheduled and self._flushing is None:
            self._scheduled = True
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        lines, self._lines = self._lines, []
        waiting, self._waiting = self._waiting, []
        flush = self._flush_to_disk(b"".join(lines), waiting)
        self._flushing = asyncio.create_task(flush, name="journal-flush")

    async def _flush_to_disk(self, data: bytes, waiting: list[asyncio.Future[None]]) -> None:
        loop = asyncio.get_running_loop()
        error: OSError | None = None
        try:
            await loop.run_in_executor(self._thread, self._commit, data)
        except OSError as problem:
            error = problem
        finally:
            self._flushing = None
            _settle(waiting, error)
            if self._lines:
                self._schedule(loop)

    # --- the file ------------------------------------------------------------------------------

    def _commit(self, data: bytes) -> None:
        self._write(data)
        try:
            os.fdatasync(self._fd)
        except OSError:
            self._cut_to(self._size - len(data))
            raise

    def _write(self, data: bytes) -> None:
        """All of `data` or, on OSError, none of it."""
        if self._torn:
            self._cut_to(self._size)
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._cut_to(self._size)
            raise
        self._size += len(data)

    def _cut_to(self, size: int) -> None:
        """Take back what was not acknowledged, so that no half line stays between whole ones. If even
        that fails, nothing more is written until it succeeds."""
        self._torn, self._size = True, size
        os.ftruncate(self._fd, size)
        self._torn = False

    def _rotate(self) -> None:
        """The current file gets a dated name that no file has. If that fails, it simply grows on."""
        target = self._free_name()
        try:
            os.fdatasync(self._fd)
            os.rename(self.path, target)
        except OSError as error:
            self._log.warning("audit log not rotated: %s", error)
            return
        old = self._fd
        try:
            self._open()
        except OSError:
            os.rename(target, self.path)
            raise
        os.close(old)
        _sync_directory(self.path.parent)
        self._log.info("audit log rotated to %s", target.name)

    def _free_name(self) -> Path:
        when = datetime.now(UTC)
        while (target := self.path.with_name(rotated_name(when))).exists():
            when += timedelta(milliseconds=1)
        return target

    def _follow(self) -> None:
        """Somebody moved or deleted the file: open a new one, so that no line goes where nobody looks."""
        if self._flushing:
            return
        here = os.fstat(self._fd)
        try:
            there = os.stat(self.path)
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                return
        except FileNotFoundError:
            pass
        self._log.warning("the audit log was moved away; writing a new one")
        old = self._fd
        self._open()
        os.close(old)

    def _open(self) -> None:
        fd = os.open(self.path, _FLAGS, 0o600)
        os.fchmod(fd, 0o600)
        self._fd, self._size = fd, os.fstat(fd).st_size

    def _repair(self) -> None:
        """Move a torn last line (a crash in the middle of a write, so never acknowledged) to a file
        of its own; the log continues after the last whole line."""
        torn = _torn_tail(self._fd, self._size)
        if not torn:
            return
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = self.path.with_name(f"audit.torn-{stamp}")
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(torn)
            file.flush()
            os.fsync(fd)
        self._cut_to(self._size - len(torn))
        self._log.warning("audit log ended in a torn line of %d bytes, moved to %s", len(torn), aside.name)


def _torn_tail(fd: int, size: int) -> bytes:
    tail = b""
    while size:
        step = min(_BLOCK, size)
        size -= step
        block = os.pread(fd, step, size)
        newline = block.rfind(b"\n")
        if newline >= 0:
            return block[newline + 1 :] + tail
        tail = block + tail
    return tail


def _lock(path: Path) -> int:
    """Held as long as this process lives. Not on the log itself, which changes its name at rotation."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigError(str(path), "another process is writing this audit log") from None
    return fd


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _settle(waiting: list[asyncio.Future[None]], error: OSError | None) -> None:
    for future in waiting:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
