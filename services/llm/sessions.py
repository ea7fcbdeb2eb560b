"""Touches the session files: `sessions/<agent>/<id>.jsonl`, 0600, appended line by line.

A session is served by one prompt at a time: a FIFO queue within this process, and a lock on the file
against other processes, which the kernel drops when its holder dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from beige.errors import Failed
from beige.paths import private_directory
from services.llm.conversation import FORMAT, AnyEntry, Header
from services.llm.journal import encode_line, read_journal, repairs

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
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


class Sessions:
    """All sessions below one directory, as far as this process serves them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._queues: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    @contextlib.asynccontextmanager
    async def open(self, agent: str, session: str, waiting: Waiting) -> AsyncIterator[Session]:
        """The session, alone: prompts to it are served in the order they came. `session` must have
        passed `journal.check_id`, `agent` be a configured agent's name."""
        async with self._turn_in_line(agent, session, waiting):
            directory = self._root / agent
            private_directory(self._root)
            private_directory(directory)
            path = directory / f"{session}.jsonl"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                await _lock(fd, waiting)
                opened = Session(agent, session, path, fd)
                await opened.load()
                yield opened
            finally:
                os.close(fd)

    @contextlib.asynccontextmanager
    async def _turn_in_line(self, agent: str, session: str, waiting: Waiting) -> AsyncIterator[None]:
        """asyncio.Lock wakes its waiters in order; a cancelled one leaves the line."""
        key = (agent, session)
        lock, users = self._queues.get(key, (asyncio.Lock(), 0))
        self._queues[key] = (lock, users + 1)
        try:
            if users:
                await waiting(f"waiting: session {session} is busy with {users} earlier prompt(s)")
            async with lock:
                yield
        finally:
            lock, users = self._queues.pop(key)
            if users > 1:
                self._queues[key] = (lock, users - 1)


async def _lock(fd: int, waiting: Waiting) -> None:
    told = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not told:
                told = True
                await waiting("waiting: another llm process is serving this session")
            await asyncio.sleep(LOCK_POLL_S)
