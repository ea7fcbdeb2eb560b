"""Copies a session's turns into a new file, which appears whole or not at all. For threads."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from beige.errors import Failed, Malformed
from services.llm.conversation import Header
from services.llm.sessions.digest import Digest
from services.llm.sessions.journal import encode_line
from services.llm.sessions.reading import PIECE, iso, lines, open_session


def fork(source: Path, target: Path, header: Header, prompts: int) -> None:
    """The copy appears whole or not at all: it is written beside its place and linked there."""
    fd = open_session(source)
    try:
        begin, end = _turns(fd, header.agent, header.forked_from, prompts)
        with _new_file(target) as file:
            os.write(
                file, encode_line(msgspec.structs.replace(header, ts=iso(datetime.now(UTC).timestamp())))
            )
            while begin < end and (piece := os.pread(fd, min(PIECE, end - begin), begin)):
                begin += os.write(file, piece)
            os.fsync(file)
    finally:
        os.close(fd)


def _turns(fd: int, agent: str, session: str, prompts: int) -> tuple[int, int]:
    """Where the turns to copy begin and end. Failed if the file is damaged there, Malformed if it has
    fewer turns."""
    digest, begin, end, ended = Digest(agent, session), 0, 0, 0
    for line, place in lines(fd, 0):
        if not digest.add(line):
            digest.damage("its file is not readable")
        if digest.info.problem:
            raise Failed(f"session {session!r}: {digest.info.problem}", executed="no")
        begin = begin or place
        if not digest.unfinished and digest.info.prompts:
            ended, end = digest.info.prompts, place
        if prompts and ended >= prompts:
            return begin, end
    if ended < max(1, prompts):
        raise Malformed(f"prompts: session {session!r} has {ended} turns that have ended")
    return begin, end


@contextmanager
def _new_file(target: Path) -> Iterator[int]:
    beside = target.with_name(f".fork-{secrets.token_hex(8)}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield fd
        os.link(beside, target)
    except FileExistsError:
        name = target.name.removesuffix(".jsonl")
        raise Malformed(f"to: there is a session {name!r} already") from None
    finally:
        os.close(fd)
        beside.unlink()
