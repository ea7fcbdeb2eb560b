"""Decides, for each hop at audit, what is written, and answers only when it is.

Sits between the corridor and the journal. A record that can't be written fails its hop, so that
nothing executes unrecorded (a full disk stops the house, it doesn't blind it).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from beige.auditlog import Record, encode_line, timestamp
from beige.bus import HopReply
from beige.errors import Denied, Unavailable
from beige.seals import Verdict, read_verdict, request_digest, sign_receipt
from beige.wire import Header
from services.audit import entry
from services.audit.ledger import MAX_OPEN, Ledger, OpenCall

RETRIES_PER_TICK = 256
BROKER_GONE = "peer_lost: the broker restarted; may have been executed"


class Appender(Protocol):
    def append(self, line: bytes) -> asyncio.Future[None] | None:
        """None: the line is kept. A future: it will be when that is done. OSError of either: it is not."""


Answer = HopReply | Awaitable[HopReply]
"""Awaitable only where the record has to reach the disk first: nothing else costs the corridor a task."""


class Recorder:
    def __init__(
        self,
        journal: Appender,
        ledger: Ledger,
        *,
        verdict_key: bytes,
        receipt_key: bytes,
        log: logging.Logger,
        clock: Callable[[], str] = timestamp,
    ) -> None:
        self._journal = journal
        self._ledger = ledger
        self._verdict_key = verdict_key
        self._receipt_key = receipt_key
        self._log = log
        self._clock = clock
        self._writing: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._owed: dict[str, Record] = {}
        """Finished records the disk refused; written as soon as it takes them."""
        self._failing = False

    def started(self, header: Header, body: bytes) -> Answer:
        """Record a call before it is executed, or its denial. The answer holds the receipt, if there is one.

        Denied if the verdict is not policy's: stops a broker in hostile hands from having something
        executed that was not decided (`test_a_forged_verdict_is_not_recorded_as_allowed`).
        """
        digest = request_digest(header, body)
        try:
            verdict = read_verdict(self._verdict_key, digest, header.verdict)
            new = self._ledger.admit(header.call, digest.hex()[: entry.DIGEST_DIGITS], verdict.allowed)
        except Denied as refusal:
            self._log.warning("refused to record %s of %s: %s", header.call, header.src, refusal)
            raise
        if new:
            self._open(header, body, digest, verdict)
        if not verdict.allowed:
            return self._once_kept(header.call, "finished", HopReply())
        receipt = sign_receipt(self._receipt_key, digest, header.verdict)
        return self._once_kept(header.call, "started", HopReply(receipt=receipt))

    def finished(self, header: Header) -> Answer:
        """Record how a call ended. Known calls once; unknown ones as completely as the header allows."""
        if not self._ledger.is_closed(header.call):
            opening = self._ledger.open.get(header.call)
            record = self._owed.get(header.call) or self._closing(header, opening)
            self._close(record, opening)
        return self._once_kept(header.call, "finished", HopReply())

    def close_other_epochs(self, epoch: int) -> None:
        """Close what a broker that is gone left open."""
        for record in self._ledger.of_other_epochs(epoch):
            if record.id in self._owed:
                continue
            with suppress(Unavailable):
                self._close(entry.abandoned(record, self._clock(), BROKER_GONE), self._ledger.open[record.id])

    def retry(self) -> None:
        """Try to write what is owed. Called every second."""
        for record in list(self._owed.values())[:RETRIES_PER_TICK]:
            if (record.id, "finished") in self._writing:
                continue
            with suppress(Unavailable):
                self._close(record, self._ledger.open.get(record.id))

    # --- records -------------------------------------------------------------------------------

    def _open(self, header: Header, body: bytes, digest: bytes, verdict: Verdict) -> None:
        if not verdict.allowed:
            record = entry.denied(header, body, self._clock(), digest, verdict.reason or "denied")
            self._ledger.closed(record.id, record.digest)
        else:
            record = entry.started(header, body, self._clock(), digest, verdict.reason)
            self._ledger.opened(record, time.monotonic())
        self._write(record, None)

    def _closing(self, header: Header, opening: OpenCall | None) -> Record:
        now = self._clock()
        if opening is None:
            return entry.finished(entry.unopened(header, now), header, now, 0.0)
        return entry.finished(opening.record, header, now, (time.monotonic() - opening.since) * 1000)

    def _close(self, record: Record, opening: OpenCall | None) -> None:
        self._ledger.closed(record.id)
        self._write(record, opening)

    # --- writing -------------------------------------------------------------------------------

    def _write(self, record: Record, opening: OpenCall | None) -> None:
        try:
            future = self._journal.append(encode_line(record))
        except OSError as error:
            self._written(record, opening, error)
            raise _unwritable(error) from None
        if future is None:
            self._written(record, opening, None)
            return
        self._writing[record.id, record.phase] = future
        future.add_done_callback(partial(self._synced, record, opening))

    def _synced(self, record: Record, opening: OpenCall | None, future: asyncio.Future[None]) -> None:
        self._writing.pop((record.id, record.phase), None)
        self._written(record, opening, future.exception())

    def _written(self, record: Record, opening: OpenCall | None, error: BaseException | None) -> None:
        if error is None:
            if record.phase == "finished":
                self._owed.pop(record.id, None)
            self._report(None)
            return
        self._report(error)
        if record.phase == "started":
            self._ledger.not_opened(record.id)
            return
        self._ledger.not_closed(record.id, opening)
        if record.decision == "allowed":
            self._owe(record)

    def _owe(self, record: Record) -> None:
        if len(self._owed) < MAX_OPEN:
            self._owed[record.id] = record
        else:
            self._log.error("too many records wait for the disk; the end of %s is lost", record.id)

    def _once_kept(self, call: str, phase: str, reply: HopReply) -> Answer:
        future = self._writing.get((call, phase))
        return reply if future is None else _after(future, reply)

    def _report(self, error: BaseException | None) -> None:
        if error and not self._failing:
            self._log.error("the audit log can't be written, nothing will execute: %s", error)
        elif self._failing and not error:
            self._log.warning("the audit log can be written again")
        self._failing = error is not None


async def _after(future: asyncio.Future[None], reply: HopReply) -> HopReply:
    try:
        await asyncio.shield(future)
    except OSError as error:
        raise _unwritable(error) from None
    return reply


def _unwritable(error: OSError) -> Unavailable:
    return Unavailable(f"the audit log can't be written: {error.strerror or error}")
