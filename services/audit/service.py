"""The audit process: serves the hops STARTED and FINISHED; the only writer of the audit log."""

from __future__ import annotations

import asyncio
import logging
import time

from beige import auditlog, wire
from beige.bus import Bus
from beige.bus.serving import HopHandler
from beige.config import load
from beige.keys import read_seal_key
from beige.process import Context
from services.audit.journal import Journal
from services.audit.ledger import rebuild
from services.audit.query import Desk
from services.audit.recorder import Recorder

CAPACITY = 1024
TICK_S = 1.0
SCAN_BYTES = 64 * 1024 * 1024
"""How far back the log is read at start for open calls and for what must not be written twice."""


async def main(context: Context) -> None:
    settings = load(context.home).audit
    journal = Journal(
        context.home.audit_log, max_bytes=settings.max_bytes, sync=settings.sync, log=context.log
    )
    recent = auditlog.records_backwards(context.home.audit_log, SCAN_BYTES)
    recorder = Recorder(
        journal,
        rebuild(recent, time.monotonic()),
        verdict_key=read_seal_key(context.home, "verdict"),
        receipt_key=read_seal_key(context.home, "receipt"),
        log=context.log,
    )
    bus = Bus(context.home, context.user)
    _serve(bus, recorder, Desk(context.home.audit_log))
    await bus.start()
    context.ready()
    await _tick_until(context.stop, bus, recorder, journal, context.log)
    await bus.close()
    await journal.close()


def _serve(bus: Bus, recorder: Recorder, desk: Desk) -> None:
    hops: dict[int, HopHandler] = {
        wire.STARTED: lambda request: recorder.started(request.header, request.body),
        wire.FINISHED: lambda request: recorder.finished(request.header),
    }
    bus.serve("audit", {"audit.query": desk.query}, capacity=CAPACITY, hops=hops)
    bus.on_session = recorder.close_other_epochs


async def _tick_until(
    stop: asyncio.Event, bus: Bus, recorder: Recorder, journal: Journal, log: logging.Logger
) -> None:
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), TICK_S)
        except TimeoutError:
            if bus.epoch:
                recorder.close_other_epochs(bus.epoch)
            recorder.retry()
            try:
                await journal.sync()
            except OSError as error:
                log.error("the audit log can't be brought to disk: %s", error)
