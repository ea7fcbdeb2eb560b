"""Touches session files for those who look at them: list, sum up, read, copy. Never changes one.

Files are read in threads, one at a time, in bounded pieces; what was read before is remembered and only
what was appended is read again. A file that can't be read says so in the list and harms no other.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from beige.errors import Failed, Malformed, NotFound
from beige.messages.llm import SessionInfo
from beige.sessions import check_id
from beige.wire import CHUNK
from services.llm.conversation import FORMAT, Header
from services.llm.sessions.digest import Digest
from services.llm.sessions.fork import fork
from services.llm.sessions.reading import iso, lines, open_session, span

REMEMBERED = 20_000
Send = Callable[[bytes], Awaitable[None]]


@dataclass
class Seen:
    """What was read of one file: `digest` covers its first `offset` bytes."""

    inode: int
    stamp: tuple[int, int]
    """Time and size of the file then."""
    offset: int
    digest: Digest


class Catalogue:
    """All sessions below one directory, whoever serves them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: OrderedDict[Path, Seen] = OrderedDict()
        self._reading = asyncio.Lock()
        """One thread at a time: the others are for sessions at work."""

    async def latest(self, agent: str, limit: int) -> tuple[list[SessionInfo], int]:
        """The `limit` sessions of `agent` that were written last, and how many there are."""
        async with self._reading:
            return await asyncio.to_thread(self._list, agent, limit)

    async def info(self, agent: str, session: str) -> SessionInfo:
        """NotFound if there is no such session."""
        async with self._reading:
            return await asyncio.to_thread(self._info, self._path(agent, session), agent)

    async def history(self, agent: str, session: str, after: int, send: Send) -> SessionInfo:
        """Send the file's whole lines, without the first `after`, in pieces of at most `wire.CHUNK` bytes.
        `entries` of the result counts up to the last line sent."""
        info = await self.info(agent, session)
        fd = open_session(self._path(agent, session))
        try:
            at, end, lines = await asyncio.to_thread(span, fd, after)
            while at < end and (piece := await asyncio.to_thread(os.pread, fd, min(CHUNK, end - at), at)):
                at += len(piece)
                await send(piece)
        finally:
            os.close(fd)
        return msgspec.structs.replace(info, entries=lines)

    async def fork(self, agent: str, session: str, to: str, prompts: int) -> SessionInfo:
        """Copy the turns that have ended, or the first `prompts` of them, into session `to`."""
        source, target = self._path(agent, session), self._path(agent, to)
        async with self._reading:
            await asyncio.to_thread(fork, source, target, Header(v=FORMAT, id=to, agent=agent,
                                                                  forked_from=session), prompts)  # fmt: skip
            return await asyncio.to_thread(self._info, target, agent)

    def _path(self, agent: str, session: str) -> Path:
        if not session:
            raise Malformed("session: name the session")
        return self._root / agent / f"{check_id(session)}.jsonl"

    # --- in a thread -----------------------------------------------------------------------------

    def _list(self, agent: str, limit: int) -> tuple[list[SessionInfo], int]:
        try:
            with os.scandir(self._root / agent) as found:
                files = [(e.stat(follow_symlinks=False).st_mtime_ns, e.name) for e in found if _is_session(e)]
        except FileNotFoundError:
            return [], 0
        files.sort(reverse=True)
        infos = []
        for _, name in files[:limit]:
            try:
                infos.append(self._info(self._root / agent / name, agent))
            except NotFound:  # removed just now
                continue
        return infos, len(files)

    def _info(self, path: Path, agent: str) -> SessionInfo:
        session = path.name.removesuffix(".jsonl")
        try:
            fd = open_session(path)
        except Failed as error:
            damaged = Digest(agent, session)
            damaged.damage(str(error))
            return _finished(damaged, -1)
        try:
            seen = self._read_on(path, fd, agent, session)
            return _finished(seen.digest, fd)
        finally:
            os.close(fd)

    def _read_on(self, path: Path, fd: int, agent: str, session: str) -> Seen:
        status = os.fstat(fd)
        stamp = (status.st_mtime_ns, status.st_size)
        seen = self._seen.pop(path, None)
        if seen is None or not _grew(seen, status.st_ino, stamp):
            seen = Seen(status.st_ino, (0, 0), 0, Digest(agent, session))
            seen.digest.info.updated = iso(status.st_mtime)
        if seen.stamp != stamp:
            seen.stamp, seen.offset = stamp, _fold(seen.digest, fd, seen.offset)
        self._seen[path] = seen
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return seen


def _grew(seen: Seen, inode: int, stamp: tuple[int, int]) -> bool:
    """It is the same file, with more lines at most. A damaged one that changed may have been mended."""
    if seen.inode != inode or seen.offset > stamp[1]:
        return False
    return seen.stamp == stamp or not seen.digest.info.problem


def _fold(digest: Digest, fd: int, offset: int) -> int:
    """Add the lines from `offset` on; the place after the last good one. A bad line is torn if no good
    one follows, and then looked at again next time."""
    good, bad = offset, 0
    try:
        for line, end in lines(fd, offset):
            if not digest.add(line):
                bad = bad or digest.info.entries + 1
                continue
            if bad:
                digest.damage(f"line {bad} of its file is not readable")
            good = end
    except Failed as error:
        digest.damage(str(error))
    if bad and not digest.info.entries:
        digest.damage("its file is not readable")
    return good


def _finished(digest: Digest, fd: int) -> SessionInfo:
    """The info as it is now: whether an unfinished turn runs is known by the lock on its file."""
    info = msgspec.structs.replace(digest.info)
    if info.problem:
        info.outcome = "damaged"
    elif digest.unfinished:
        info.outcome = "running" if _is_locked(fd) else "interrupted"
    return info


def _is_locked(fd: int) -> bool:
    """A shared lock for a moment; who asks for the session just then tries again by itself."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _is_session(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".jsonl") and not entry.name.startswith(".")
