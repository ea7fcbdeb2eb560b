"""Copies of the traffic for the tap process: batched, counted when dropped, free when off.

One PUSH message is one MessagePack array `[first_seq, dropped_before, [record, ...]]`, a record
`[monotonic_ns, wall_ns, "in" | "out", user, header, body_length, body | nil]`. Tokens and seals never
enter it.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import zmq

from beige.wire import Header, encode_header
from broker.auth import TAP_DOMAIN
from broker.calls import Body, Peer

MAX_BATCH = 128
MAX_DELAY_S = 0.01
MAX_TAPPED_BODY = 4096


class TapFeed:
    """The broker's end of the tap. `on` is set by the tap process's `bus.tap` call."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket: Any = context.socket(zmq.PUSH)
        self._socket.linger = 0
        self._socket.sndhwm = 1000
        self._socket.immediate = 1
        self._socket.plain_server = True
        self._socket.zap_domain = TAP_DOMAIN
        self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._socket.bind(endpoint)
        self.on = False
        self.bodies = False
        self.sequence = 0
        self.dropped = 0
        self._batch: list[tuple[Any, ...]] = []
        self._oldest = 0.0

    def copy(self, direction: str, peer: Peer, header: Header, body: Body) -> None:
        if not self.on:
            return
        public = encode_header(msgspec.structs.replace(header, token="", verdict=b"", receipt=b""))
        kept = bytes(body) if self.bodies and len(body) <= MAX_TAPPED_BODY else None
        if not self._batch:
            self._oldest = time.monotonic()
        self._batch.append(
            (time.monotonic_ns(), time.time_ns(), direction, peer.user, public, len(body), kept)
        )
        if len(self._batch) >= MAX_BATCH:
            self.flush()

    def tick(self, now: float) -> None:
        if self._batch and now - self._oldest >= MAX_DELAY_S:
            self.flush()

    def flush(self) -> None:
        batch, self._batch = self._batch, []
        first = self.sequence + 1
        self.sequence += len(batch)
        try:
            self._socket.send(msgspec.msgpack.encode((first, self.dropped, batch)), zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += len(batch)

    def close(self) -> None:
        self._socket.close(0)
