"""Touches `data/openai-conversations.sqlite3`: digests of conversations, and the sessions they are.

It holds no word of a conversation and no token. It is a help, not the truth: without it a conversation
goes on in a new session that is told the history. So a file that is damaged is put aside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from services.gateway.openai.recognise import Place

MAX_PLACES = 50_000
"""About 10 MB. The oldest go."""
BATCH = 500
T = TypeVar("T")
log = logging.getLogger("gateway")
_SCHEMA = """CREATE TABLE IF NOT EXISTS places (
  key BLOB UNIQUE NOT NULL, session TEXT NOT NULL, turns INTEGER NOT NULL, system BLOB NOT NULL,
  cut INTEGER NOT NULL
)"""
_FIND = "SELECT key, session, turns, system, cut FROM places WHERE key IN ({})"
_KEEP = "INSERT OR REPLACE INTO places (key, session, turns, system, cut) VALUES (?, ?, ?, ?, ?)"
_TRIM = "DELETE FROM places WHERE rowid <= (SELECT max(rowid) FROM places) - ?"


class Remembered:
    """The places of conversations, by digest. One thread of its own does the work, in order."""

    def __init__(self, path: Path, max_places: int = MAX_PLACES) -> None:
        self._path, self._max = path, max_places
        self._thread = ThreadPoolExecutor(1, "openai conversations")
        self._opened: sqlite3.Connection | None = None

    async def find(self, keys: Sequence[bytes]) -> dict[bytes, Place]:
        """Those that are known."""
        return await self._run(lambda db: _find(db, keys))

    async def keep(self, places: Mapping[bytes, Place]) -> None:
        """On disk before the next process looks, though not before a power cut."""
        rows = [(key, p.session, p.turns, p.system, p.cut) for key, p in places.items()]
        await self._run(lambda db: _keep(db, rows, self._max))

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._db())
        except (sqlite3.Error, OSError) as error:
            log.error("the conversations of OpenAI's clients are forgotten: %s", error)
            self._put_aside()
            return work(self._db())

    def _db(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = _open(str(self._path))
        return self._opened

    def _put_aside(self) -> None:
        """A damaged file is kept for whoever wants to look; a disk that can't be written is done without."""
        self._close()
        try:
            self._path.replace(self._path.with_suffix(".damaged"))
            _remove_companions(self._path)
            self._opened = _open(str(self._path))
        except (OSError, sqlite3.Error):
            self._opened = _open(":memory:")

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _open(path: str) -> sqlite3.Connection:
    if path != ":memory:":
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5.0)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=OFF")
        db.execute(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def _remove_companions(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def _find(db: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Place]:
    found = {}
    for begin in range(0, len(keys), BATCH):
        some = keys[begin : begin + BATCH]
        rows = db.execute(_FIND.format(",".join("?" * len(some))), some)
        found.update({row[0]: Place(row[1], row[2], row[3], bool(row[4])) for row in rows})
    return found


def _keep(db: sqlite3.Connection, rows: Sequence[tuple[bytes, str, int, bytes, bool]], most: int) -> None:
    db.execute("BEGIN")
    try:
        db.executemany(_KEEP, rows)
        db.execute(_TRIM, (most,))
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
