"""Touches `inbox.sqlite3`: messages taken from Telegram and not yet answered, and what to ask for next.

Telegram forgets a message once a later one is asked for, so it is written down here before. A message is
`begun` before its prompt is: after a kill, one that is not can be run, and one that is may have been.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
  id INTEGER PRIMARY KEY, chat INTEGER NOT NULL, thread INTEGER, message INTEGER NOT NULL, kind TEXT NOT NULL,
  user INTEGER NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL, begun INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS next (id INTEGER PRIMARY KEY CHECK (id = 0), offset INTEGER NOT NULL);
"""
_PUT = "INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)"
_OPEN = "SELECT id, chat, thread, message, kind, user, name, text, begun FROM messages ORDER BY id"


@dataclass(frozen=True)
class Entry:
    id: int
    """Telegram's `update_id`."""
    chat: int
    thread: int | None
    message: int
    kind: str
    """The chat's: `private`, `group`, `supergroup`."""
    user: int
    name: str
    text: str
    begun: bool = False


class Inbox:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = asyncio.Lock()

    async def offset(self) -> int:
        """The `offset` to ask with; 0: none is needed."""

        def read(db: sqlite3.Connection) -> int:
            row = db.execute("SELECT offset FROM next").fetchone()
            return int(row[0]) if row else 0

        return await self._run(read)

    async def take(self, entries: Sequence[Entry], offset: int) -> None:
        """Keep `entries`; ask with `offset` from now on. 0: Telegram has forgotten all before. It is not kept
        longer, because Telegram begins with other numbers, lower ones too, after a week without messages."""

        def write(db: sqlite3.Connection) -> None:
            rows = [(e.id, e.chat, e.thread, e.message, e.kind, e.user, e.name, e.text) for e in entries]
            db.executemany(_PUT, rows)
            db.execute("INSERT OR REPLACE INTO next VALUES (0, ?)", (offset,))

        await self._run(write)

    async def begin(self, number: int) -> None:
        await self._run(lambda db: db.execute("UPDATE messages SET begun = 1 WHERE id = ?", (number,)))

    async def done(self, number: int) -> None:
        await self._run(lambda db: db.execute("DELETE FROM messages WHERE id = ?", (number,)))

    async def open(self) -> list[Entry]:
        """Not answered yet, the oldest first."""
        rows = await self._run(lambda db: db.execute(_OPEN).fetchall())
        return [Entry(*row[:8], begun=bool(row[8])) for row in rows]

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(self._work, work)

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        with contextlib.closing(sqlite3.connect(self._path, timeout=5.0)) as db:
            db.executescript(_SCHEMA)
            with db:
                return work(db)
