"""Touches the connections: uvicorn's HTTP/1.1 protocol with a deadline for each of its waits.

    connect ── head ──► request ── body ──► response ──► idle ── head ──► ...
            HEAD_S             BODY_S (guard)   STALL_S       KEEP_ALIVE_S

h11 parses (it is strict about framing); this adds what neither bounds: how long a head, a body that
nobody waits for any more, and a reader that doesn't read may take, and how many connections there are.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.gateway.errors import HttpError, encoded

HEAD_S = 10.0
"""From a connection, or a request's first byte, to the end of its head: stops slow headers from
holding connections (`test_slow_headers_end`)."""
LINGER_S = 5.0
"""How long the rest of a body is thrown away after the answer: a client that is still sending can read
why it was refused."""
STALL_S = 60.0
"""How long a client may not read while there is something for it."""
KEEP_ALIVE_S = 15
MAX_HEAD_BYTES = 64 * 1024
"""What h11 collects before it gives up on a head; `access.check_head` has the API's own limit."""

Phase = Literal["idle", "head", "request", "linger"]
_BUSY = HttpError(503, "overloaded", "too many connections are open", {"connection": "close"})
_WRONG = HttpError(400, "malformed", "this is not sound HTTP", {"connection": "close"})
_SLOW = HttpError(408, "deadline_exceeded", "the request's head took too long")


class Connection(H11Protocol):
    """One connection. uvicorn makes them; `max_connections` is set on a subclass."""

    max_connections = 1000
    head_s, linger_s, stall_s = HEAD_S, LINGER_S, STALL_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase: Phase = "idle"
        self._waiting: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= self.max_connections:
            self.transport = transport
            transport.write(raw_response(_BUSY))
            transport.close()
            return
        super().connection_made(transport)
        self._enter("head")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:
            self._enter("head")
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter("idle")
        self._end_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """In the API's own shape. Nothing of the request is repeated."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(raw_response(_WRONG))
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """Never: an Upgrade header is ignored, as RFC 9110 section 7.8 allows."""
        return False

    # --- waits -------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Which wait this is now."""
        answered = self.cycle is not None and self.cycle.response_complete
        if self.conn.their_state is h11.SEND_BODY:
            self._enter("linger" if answered else "request")
        elif self.conn.their_state is not h11.IDLE:
            self._enter("request")
        elif answered and self._phase != "head":
            self._enter("idle")

    def _enter(self, phase: Phase) -> None:
        if phase == self._phase:
            return
        self._phase = phase
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if phase == "head":
            self._waiting = self.loop.call_later(self.head_s, self._head_is_late)
        elif phase == "linger":
            self._waiting = self.loop.call_later(self.linger_s, self.transport.abort)

    def _head_is_late(self) -> None:
        self.transport.write(raw_response(_SLOW))
        self.transport.close()

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def raw_response(error: HttpError) -> bytes:
    """A whole response, for where no request was read that h11 could answer."""
    body = encoded(error)
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
