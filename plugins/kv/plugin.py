"""`kv`: a persistent key-value store, private to each agent. Touches one SQLite file.

Several processes may hold the file at once (`scale.tools`): every change is one transaction.
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from beige.plugins import PluginContext, PluginRegistrar, ToolError, ToolInvocation, ToolOutput, UsageError

MAX_KEY = 512
MAX_VALUE = 256 * 1024
MAX_AGENT = 16 * 1024 * 1024
"""Bytes of keys and values one agent may hold."""
MAX_KEYS = 10_000
BUSY_S = 10.0

USAGE = """usage: kv set KEY VALUE   store VALUE under KEY
       kv get KEY         print the value of KEY (exit code 1 if there is none)
       kv del KEY...      remove keys; prints how many there were
       kv list [PREFIX]   print the keys, sorted, one per line"""

_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS entries (
    agent TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (agent, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage (agent TEXT PRIMARY KEY, keys INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON entries BEGIN
    INSERT INTO usage VALUES (new.agent, 1, length(new.key) + length(new.value))
    ON CONFLICT (agent) DO UPDATE SET keys = keys + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER IF NOT EXISTS changed AFTER UPDATE ON entries BEGIN
    UPDATE usage SET bytes = bytes + length(new.value) - length(old.value) WHERE agent = new.agent;
END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON entries BEGIN
    UPDATE usage SET keys = keys - 1, bytes = bytes - length(old.key) - length(old.value)
    WHERE agent = old.agent;
END;
"""
_USAGE = "SELECT keys, bytes FROM usage WHERE agent = ?"
_PUT = "INSERT INTO entries VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"


class Store:
    """The table. Every query names the agent: no key of one is visible to another."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._local = threading.local()
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # SQLite can't wait while another process switches to WAL
            self._connection().executescript(_SCHEMA)

    def get(self, agent: str, key: bytes) -> bytes | None:
        found = self._connection().execute(
            "SELECT value FROM entries WHERE agent = ? AND key = ?", (agent, key)
        )
        row = found.fetchone()
        return None if row is None else bytes(row[0])

    def put(self, agent: str, key: bytes, value: bytes) -> None:
        """ToolError if the agent would hold more than its limits."""
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(_PUT, (agent, key, value))
            keys, size = connection.execute(_USAGE, (agent,)).fetchone()
            if keys > MAX_KEYS or size > MAX_AGENT:
                raise ToolError(f"kv: full: at most {MAX_KEYS} keys and {MAX_AGENT} bytes per agent")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def remove(self, agent: str, keys: Sequence[bytes]) -> int:
        connection = self._connection()
        marks = ",".join("?" * len(keys))
        query = f"DELETE FROM entries WHERE agent = ? AND key IN ({marks})"  # noqa: S608 - only "?,?"
        return connection.execute(query, (agent, *keys)).rowcount

    def keys(self, agent: str, prefix: bytes) -> list[bytes]:
        query = "SELECT key FROM entries WHERE agent = ? AND substr(key, 1, ?) = ? ORDER BY key"
        return [bytes(row[0]) for row in self._connection().execute(query, (agent, len(prefix), prefix))]

    def _connection(self) -> sqlite3.Connection:
        """This thread's own: SQLite's transactions belong to a connection."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self._file, timeout=BUSY_S, isolation_level=None)
            connection.execute("PRAGMA synchronous = NORMAL")
            self._local.connection = connection
        return connection


class Kv:
    """The plugin: arguments in, text out."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._commands: dict[str, Callable[[str, tuple[str, ...]], ToolOutput]] = {
            "get": self._get,
            "set": self._set,
            "del": self._del,
            "list": self._list,
        }

    def register(self, reg: PluginRegistrar) -> None:
        reg.tool("kv", self.call, description="A persistent key-value store.", timeout_s=30)

    def call(self, call: ToolInvocation) -> ToolOutput:
        if not call.args or call.args[0] in ("help", "-h", "--help"):
            return ToolOutput(USAGE) if call.args else ToolOutput(error=USAGE, exit_code=2)
        command = self._commands.get(call.args[0])
        if command is None:
            raise UsageError(f"kv: unknown command {call.args[0]!r:.80}\n{USAGE}")
        return command(call.agent, call.args[1:])

    def _get(self, agent: str, args: tuple[str, ...]) -> ToolOutput:
        _expect(len(args) == 1, "get takes one KEY")
        value = self._store.get(agent, _key(args[0]))
        if value is None:
            raise ToolError(f"kv: no such key: {args[0]!r:.200}")
        return ToolOutput(value.decode())

    def _set(self, agent: str, args: tuple[str, ...]) -> ToolOutput:
        _expect(len(args) == 2, "set takes a KEY and a VALUE (quote a value with spaces)")
        value = args[1].encode()
        if len(value) > MAX_VALUE:
            raise UsageError(f"kv: the value has {len(value)} bytes; the limit is {MAX_VALUE}")
        self._store.put(agent, _key(args[0]), value)
        return ToolOutput("OK")

    def _del(self, agent: str, args: tuple[str, ...]) -> ToolOutput:
        _expect(0 < len(args) <= 500, "del takes one to 500 KEYs")
        return ToolOutput(str(self._store.remove(agent, [_key(arg) for arg in args])))

    def _list(self, agent: str, args: tuple[str, ...]) -> ToolOutput:
        _expect(len(args) <= 1, "list takes at most one PREFIX")
        keys = self._store.keys(agent, args[0].encode() if args else b"")
        return ToolOutput("\n".join(key.decode() for key in keys))


def _key(text: str) -> bytes:
    key = text.encode()
    if not key or len(key) > MAX_KEY:
        raise UsageError(f"kv: a key has 1 to {MAX_KEY} bytes, this one {len(key)}")
    if any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in text):
        raise UsageError("kv: a key must not hold newlines or control characters")
    return key


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise UsageError(f"kv: {problem}\n{USAGE}")


def create_plugin(config: dict[str, Any], ctx: PluginContext) -> Kv:
    """Takes no configuration."""
    if config:
        raise ValueError("kv takes no configuration")
    return Kv(Store(ctx.data_dir / "kv.sqlite3"))
