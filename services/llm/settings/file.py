"""Touches `sessions/session-settings.json`: what was set for single sessions, shared by all llm processes.

{"v": 1, "sessions": {"travel/20261129-161500-1a2b3c4d": {"verbose": true, "thinkingLevel": "high"}}}

Readers take the file as it is: it is only ever replaced in one step. Writers take turns by a lock on
`session-settings.lock`, which the kernel drops when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from beige.errors import Failed, Overloaded, TooLarge
from beige.messages.session_settings import SessionSettings
from beige.paths import private_directory

log = logging.getLogger("llm")
NAME = "session-settings"
MAX_BYTES = 4 * 1024 * 1024
MOST_SESSIONS = 5_000
"""Of one agent: a client that may only talk to it can't fill the file for the others."""
LOCK_S, LOCK_POLL_S = 5.0, 0.01


class File(Struct, forbid_unknown_fields=True):
    v: Literal[1] = 1
    sessions: dict[str, SessionSettings] = {}
    """By `agent/session`; neither may hold a slash."""


class Damaged(Exception):
    """The file can't be used as it is. The message says why, without a path."""


def _of(agent: str, file: File) -> int:
    return sum(key.startswith(f"{agent}/") for key in file.sessions)


class SettingsFile:
    """All methods block for the disk, `change` also for other writers: call them in a thread."""

    def __init__(self, directory: Path, *, lock_s: float = LOCK_S) -> None:
        self._directory, self._lock_s = directory, lock_s
        self._path = directory / f"{NAME}.json"

    def read(self, agent: str, session: str) -> tuple[SessionSettings, list[str]]:
        """The session's layer; and in words, if the file is damaged, that it is not honoured."""
        try:
            return self._load().sessions.get(f"{agent}/{session}", SessionSettings()), []
        except Damaged as error:
            return SessionSettings(), [
                f"{self._path.name} is damaged, so no session's setting holds: {error}"
            ]

    def change(
        self, agent: str, session: str, change: Callable[[SessionSettings], SessionSettings]
    ) -> tuple[SessionSettings, list[str]]:
        """The layer afterwards. A damaged file is kept under another name, which is told. Overloaded if
        another process holds the lock for too long, Failed if the disk takes nothing."""
        key, notices = f"{agent}/{session}", []
        try:
            with self._locked():
                try:
                    file = self._load()
                except Damaged as error:
                    file = File()
                    notices.append(self._put_aside(error))
                layer = change(file.sessions.get(key, SessionSettings()))
                if key not in file.sessions and _of(agent, file) >= MOST_SESSIONS:
                    raise TooLarge(
                        f"{MOST_SESSIONS} sessions of {agent} have settings: unset what is not needed"
                    )
                if layer == SessionSettings():
                    file.sessions.pop(key, None)
                else:
                    file.sessions[key] = layer
                self._save(file)
        except OSError as error:
            raise Failed(f"{self._path.name} can't be written: {error.strerror}", executed="no") from error
        return layer, notices

    def _load(self) -> File:
        try:
            # O_NONBLOCK: a FIFO in the file's place must not hold a thread for ever.
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(fd, "rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return File()
        except OSError as error:
            raise Damaged(error.strerror) from error
        if len(data) > MAX_BYTES:
            raise Damaged(f"it has more than {MAX_BYTES} bytes")
        try:
            return msgspec.json.decode(data, type=File)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise Damaged(str(error)[:200]) from error

    def _put_aside(self, why: Damaged) -> str:
        stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        aside = self._path.with_name(f"{NAME}.damaged-{stamp}.json")
        self._path.replace(aside)
        text = f"{self._path.name} was damaged ({why}): it is kept as {aside.name}, and a new one begun"
        log.error("%s", text)
        return text

    def _save(self, file: File) -> None:
        data = msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"
        if len(data) > MAX_BYTES:
            raise TooLarge(f"{self._path.name} would grow over {MAX_BYTES} bytes: unset what is not needed")
        new = self._path.with_suffix(".new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(fd)
        new.replace(self._path)
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        private_directory(self._directory)
        lock = self._directory / f"{NAME}.lock"
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            end = time.monotonic() + self._lock_s
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise Overloaded(f"{lock.name} is held by another process: try again") from None
                    time.sleep(LOCK_POLL_S)
            yield
        finally:
            os.close(fd)
