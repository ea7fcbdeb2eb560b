"""Touches `data/channels/<channel>.sqlite3`: which session each conversation of a channel is in now.

Without the file a conversation goes on in its first session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from pathlib import Path

from beige.errors import Overloaded
from beige.sessions import new_id

MAX_CONVERSATIONS = 50_000
"""About 5 MB: a channel in bad hands doesn't fill the disk."""
_SCHEMA = """CREATE TABLE IF NOT EXISTS sessions (
  agent TEXT NOT NULL, conversation TEXT NOT NULL, session TEXT NOT NULL, PRIMARY KEY (agent, conversation)
)"""
_FIND = "SELECT session FROM sessions WHERE agent = ? AND conversation = ?"
_KEEP = "INSERT OR REPLACE INTO sessions (agent, conversation, session) VALUES (?, ?, ?)"


def first_session(channel: str, conversation: str) -> str:
    """The session a conversation begins in."""
    return f"{channel}:{conversation}"


class Conversations:
    """Those of one channel."""

    def __init__(self, channel: str, path: Path, most: int = MAX_CONVERSATIONS) -> None:
        self._channel, self._path, self._most = channel, path, most
        self._lock = asyncio.Lock()

    async def session(self, agent: str, conversation: str) -> str:
        async with self._lock:
            found = await asyncio.to_thread(self._find, agent, conversation)
        return found or first_session(self._channel, conversation)

    async def renew(self, agent: str, conversation: str) -> str:
        """A fresh session, which is the conversation's from now on. Overloaded if there are too many."""
        session = f"{first_session(self._channel, conversation)}:{new_id()}"
        async with self._lock:
            await asyncio.to_thread(self._keep, agent, conversation, session)
        return session

    def _find(self, agent: str, conversation: str) -> str:
        with self._open() as db:
            row = db.execute(_FIND, (agent, conversation)).fetchone()
        return str(row[0]) if row else ""

    def _keep(self, agent: str, conversation: str, session: str) -> None:
        with self._open() as db, db:
            (count,) = db.execute("SELECT count(*) FROM sessions").fetchone()
            if count >= self._most and not db.execute(_FIND, (agent, conversation)).fetchone():
                raise Overloaded(f"the channel has {self._most} conversations already")
            db.execute(_KEEP, (agent, conversation, session))

    def _open(self) -> contextlib.closing[sqlite3.Connection]:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        db = sqlite3.connect(self._path, timeout=5.0)
        db.execute(_SCHEMA)
        return contextlib.closing(db)
