"""Answers questions about the log: a page of records, the newest first. Reads files, in a thread.

Bounded three ways, so that a question can't keep audit from its work: one at a time, so many bytes of
the log each, so many bytes of answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec

from beige import auditlog
from beige.auditlog import Record
from beige.bus import Request
from beige.errors import Overloaded
from beige.messages.audit import AuditPage, AuditQuery

SCAN_BYTES = 64 * 1024 * 1024
"""How far back one question reads."""
ANSWER_BYTES = 512 * 1024
MAX_WAITING = 16


class Desk:
    """Serves `audit.query`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._one = asyncio.Lock()
        self._waiting = 0

    async def query(self, request: Request, body: AuditQuery) -> AuditPage:
        if self._waiting >= MAX_WAITING:
            raise Overloaded("too many questions to the audit log at once")
        self._waiting += 1
        try:
            async with self._one:
                return await asyncio.to_thread(page, self._log, body)
        finally:
            self._waiting -= 1


def page(log: Path, query: AuditQuery) -> AuditPage:
    found: list[Record] = []
    size, end = 0, ""
    scan = _Scan(log)
    for record in scan:
        if not _matches(query, record):
            continue
        if end and record.ts != end:
            return AuditPage(found, before=end)
        found.append(record)
        size += len(msgspec.msgpack.encode(record))
        if len(found) >= query.limit or size >= ANSWER_BYTES:
            end = record.ts
    return AuditPage(found, before="", complete=scan.complete)


def _matches(query: AuditQuery, record: Record) -> bool:
    return (
        (not query.agents or record.agent in query.agents)
        and query.session in ("", record.session)
        and query.tool in ("", record.tool)
        and (not query.before or record.ts < query.before)
    )


class _Scan:
    """Records backwards; `complete` afterwards says whether the beginning of the log was reached."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.complete = sum(path.stat().st_size for path in auditlog.files(log)) <= SCAN_BYTES

    def __iter__(self) -> Iterator[Record]:
        return auditlog.records_backwards(self._log, SCAN_BYTES)
