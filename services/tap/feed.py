"""Turns the broker's batches into events for operators. Pure: bytes in, events out.

The batch's shape is drawn in `broker/tap.py`; it comes from the broker over an authenticated socket,
but the headers and bodies inside are whatever peers sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from beige import wire
from beige.tapevent import NO_AGENT, TapEvent, TapState
from beige.wire import Header
from services.tap import redact
from services.tap.correlate import Correlator, Known

MAX_TOPICS = 4096


class Copy(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    mono_ns: int
    wall_ns: int
    dir: str
    peer: str
    header: Annotated[bytes, Meta(max_length=wire.MAX_HEADER)]
    size: int
    body: bytes | None


class Batch(Struct, array_like=True, forbid_unknown_fields=True):
    first_seq: int
    dropped: int
    records: list[Copy]


_decode = msgspec.msgpack.Decoder(Batch)


class Feed:
    def __init__(self) -> None:
        self._correlator = Correlator()
        self._expected = 0
        self._topics: OrderedDict[str, int] = OrderedDict()
        self.seq = 0
        self.lost = 0
        self.unreadable = 0

    def broker_restarted(self) -> None:
        """Its numbers, and the calls it held, begin anew."""
        self._correlator = Correlator()
        self._expected = 0

    def state(self, epoch: int, on: bool, bodies: bool) -> TapState:
        return TapState(epoch=epoch, on=on, bodies=bodies, seq=self.seq, lost=self.lost)

    def events(self, message: bytes) -> Iterator[tuple[str, TapEvent]]:
        """(topic, event) of each copy in one batch. What can't be read is counted, not raised."""
        try:
            batch = _decode.decode(message)
        except wire.DECODE_ERRORS:
            self.unreadable += 1
            return
        if self._expected:
            self.lost += max(0, batch.first_seq - self._expected)
        self._expected = batch.first_seq + len(batch.records)
        for copy in batch.records:
            try:
                header = wire.decode_header(copy.header)
            except wire.DECODE_ERRORS:
                self.unreadable += 1
                continue
            yield self._event(copy, header)

    def _event(self, copy: Copy, header: Header) -> tuple[str, TapEvent]:
        known, latency = self._correlator.place(copy.dir, copy.peer, header, copy.mono_ns)
        topic = _topic(known.agent or header.agent)
        self.seq += 1
        event = TapEvent(
            seq=self.seq,
            topic_seq=self._next(topic),
            lost=self.lost,
            wall_ns=copy.wall_ns,
            mono_ns=copy.mono_ns,
            dir=copy.dir,
            peer=copy.peer,
            type=wire.TYPE_NAMES[header.type] if header.type < len(wire.TYPE_NAMES) else str(header.type),
            id=header.id,
            size=copy.size,
            latency_ms=latency,
            attempt=header.attempt,
            ttl_ms=header.ttl_ms,
            credit=header.credit,
            code=redact.text(header.code),
            maybe=bool(header.flags & wire.EXECUTED_MAYBE) and header.type == wire.ERR,
            end=bool(header.flags & wire.END) and header.type == wire.ITEM,
            trace=redact.text(header.trace),
        )
        _name(event, known, header)
        _outcome(event, header)
        if copy.body:
            event.body = redact.body(event.type, f"{known.service}.{known.method}", copy.body)
        return topic, event

    def _next(self, topic: str) -> int:
        number = self._topics.pop(topic, 0) + 1
        self._topics[topic] = number
        if len(self._topics) > MAX_TOPICS:
            self._topics.popitem(last=False)
        return number


def _topic(agent: str) -> str:
    """Names that begin with `+` are the tap's own; an operator may name an agent as he likes."""
    return NO_AGENT if not agent or agent.startswith("+") else agent


def _name(event: TapEvent, known: Known, header: Header) -> None:
    event.service = redact.text(known.service or header.service)
    event.method = redact.text(known.method)
    event.agent = redact.text(known.agent or header.agent)
    event.session = redact.text(known.session or header.session)
    event.channel = redact.text(known.channel or header.channel)
    event.src, event.hop, event.call, event.parent = known.src, known.hop, known.call, known.parent


def _outcome(event: TapEvent, header: Header) -> None:
    if header.outcome is None:
        return
    event.error = redact.text(header.outcome.error)
    event.exit_code = header.outcome.exit_code
    event.output_bytes = header.outcome.output_bytes
