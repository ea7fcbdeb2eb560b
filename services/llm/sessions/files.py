"""Touches the session files: `sessions/<agent>/<id>.jsonl`, 0600, appended line by line.

A session is served by one prompt at a time: a FIFO queue within this process, and a lock on the file
against other processes, which the kernel drops when its holder dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from beige.errors import Failed, NotFound, Overloaded
from beige.paths import private_directory
from services.llm.conversation import FORMAT, AnyEntry, Header
from services.llm.sessions.journal import encode_line, read_journal, repairs

LOCK_POLL_S = 0.05
Waiting = Callable[[str], Awaitable[None]]
"""Told once, in words, why a prompt has to wait."""


class Session:
    """An open, locked session. `entries` is what its file holds."""

    def __init__(self, agent: str, session: str, path: Path, fd: int) -> None:
        self.agent, self.id = agent, session
        self.entries: list[AnyEntry] = []
        self.repaired: list[AnyEntry] = []
        """What had to be added when it was opened, because a process died."""
        self._path, self._fd = path, fd
        self._size = 0
        self._new = False

    async def load(self) -> None:
        """Read the file and repair its end. Failed if it is damaged elsewhere."""
        data = await asyncio.to_thread(self._path.read_bytes)
        journal = await asyncio.to_thread(read_journal, data, self.agent, self.id)
        self.entries, self._size = journal.entries, journal.keep
        self.repaired = repairs(journal, len(data))
        if len(data) > journal.keep:
            os.ftruncate(self._fd, journal.keep)
        if not self.entries:
            self._new = True
            self.append(Header(v=FORMAT, id=self.id, agent=self.agent))
        for entry in self.repaired:
            self.append(entry)

    def append(self, entry: AnyEntry) -> None:
        """Write one line. It survives this process at once; after `sync`, a power cut too. A line
        that can't be written whole is taken back, so that none is torn in the middle of the file."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = msgspec.structs.replace(entry, ts=stamp)
        line = memoryview(encode_line(entry))
        try:
            written = 0
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            raise Failed(f"session {self.id!r} can't be written: {error.strerror}") from error
        self._size += len(line)
        self.entries.append(entry)

    async def sync(self) -> None:
        """Return once the disk has what was appended."""
        await asyncio.to_thread(self._sync)

    def _sync(self) -> None:
        os.fsync(self._fd)
        if self._new:
            self._new = False
            _sync_directory(self._path.parent)


class Sessions:
    """All sessions below one directory, as far as this process serves them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lines: dict[tuple[str, str], deque[asyncio.Event]] = {}
        """Who is served, and who waits, per session; the first one is served."""

    @contextlib.asynccontextmanager
    async def open(self, agent: str, session: str, waiting: Waiting) -> AsyncIterator[Session]:
        """The session, alone: prompts to it are served in the order they came. `session` must have
        passed `check_id`, `agent` be a configured agent's name."""
        async with self._turn_in_line(agent, session, waiting):
            path = self._path(agent, session)
            private_directory(self._root)
            private_directory(path.parent)
            fd = await _locked(path, waiting)
            try:
                opened = Session(agent, session, path, fd)
                await opened.load()
                yield opened
            finally:
                os.close(fd)

    async def remove(self, agent: str, session: str) -> None:
        """The session's file is gone. Overloaded while a prompt is served or waits, NotFound without one."""
        busy = Overloaded(f"session {session!r} is busy: cancel its prompts first")
        if (agent, session) in self._lines:
            raise busy
        path = self._path(agent, session)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise NotFound(f"no such session: {session!r}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        except BlockingIOError:
            raise busy from None
        finally:
            os.close(fd)
        await asyncio.to_thread(_sync_directory, path.parent)

    def _path(self, agent: str, session: str) -> Path:
        return self._root / agent / f"{session}.jsonl"

    @contextlib.asynccontextmanager
    async def _turn_in_line(self, agent: str, session: str, waiting: Waiting) -> AsyncIterator[None]:
        """A place in the line is taken before anything is waited for, so that the order is that in which
        the calls came. A cancelled one leaves the line."""
        key, turn = (agent, session), asyncio.Event()
        line = self._lines.setdefault(key, deque())
        line.append(turn)
        try:
            if len(line) > 1:
                await waiting(f"waiting: session {session} is busy with {len(line) - 1} earlier prompt(s)")
                await turn.wait()
            yield
        finally:
            line.remove(turn)
            if line:
                line[0].set()
            else:
                del self._lines[key]


async def _locked(path: Path, waiting: Waiting) -> int:
    """The file, created if need be, and locked. One that was removed meanwhile is opened anew: what is
    written to it would be lost."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            await _lock(fd, waiting)
            if _is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


async def _lock(fd: int, waiting: Waiting) -> None:
    """Told only when it really lasts: those who list sessions hold a lock for a moment, too."""
    tries = 0
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            tries += 1
            if tries == 2:
                await waiting("waiting: another llm process is serving this session")
            await asyncio.sleep(LOCK_POLL_S)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
