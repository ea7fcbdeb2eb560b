"""One bus session: a DEALER socket from connect to its end, never reused.

After anything that makes delivery doubtful (disconnect, new broker, RESET, silence) the session is
over and its owner opens a new one: libzmq would otherwise reconnect silently and lose messages.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from beige import frames, wire
from beige.errors import Overloaded
from beige.wire import Header, decode_header, encode_header

MAX_OUTBOX = 5000
DRAIN_PER_TURN = 128
FLUSH_RETRY_S = 0.002


class Session:
    """`on_message(header, body)`, `on_up()` once the connection is authenticated, `on_lost(why)` once."""

    def __init__(
        self,
        context: Any,
        endpoint: str,
        user: str,
        secret: str,
        *,
        on_up: Callable[[], None],
        on_message: Callable[[Header, bytes], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_up, self._on_message, self._on_lost = on_up, on_message, on_lost
        self.seen = time.monotonic()
        self.closed = False
        self._outbox: deque[tuple[bytes, bytes]] = deque()
        self._scheduled = self._receiving = False
        self._socket = self._open(context, user, secret)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self._socket.connect(endpoint)
        self._fds = (self._socket.FD, self._monitor.FD)
        self._loop.add_reader(self._fds[0], self._receive)
        self._loop.add_reader(self._fds[1], self._watch)
        self._loop.call_soon(self._watch)

    @staticmethod
    def _open(context: Any, user: str, secret: str) -> Any:
        s = context.socket(zmq.DEALER)
        s.routing_id = b"s" + os.urandom(15)
        s.immediate, s.linger = 1, 0
        s.sndhwm = s.rcvhwm = 1000
        s.maxmsgsize = wire.MAX_FRAME
        s.heartbeat_ivl, s.heartbeat_timeout, s.heartbeat_ttl = 1000, 3000, 3000
        s.handshake_ivl = 2000
        s.reconnect_ivl = 20
        s.plain_username, s.plain_password = user.encode(), secret.encode()
        return s

    def send(self, header: Header, body: bytes = b"") -> None:
        """Queue one message. Overloaded if thousands wait already; silently nothing on a lost session
        (whoever waits for an answer has been told)."""
        if self.closed:
            return
        encoded = encode_header(header)
        if not self._outbox:
            try:
                frames.send_two(self._socket, encoded, body)
                self._recheck()
                return
            except frames.Again:
                pass
        if len(self._outbox) >= MAX_OUTBOX:
            raise Overloaded("the connection to the broker is full")
        self._outbox.append((encoded, body))
        if len(self._outbox) == 1:
            self._loop.call_later(FLUSH_RETRY_S, self._flush)

    def _flush(self) -> None:
        while self._outbox and not self.closed:
            try:
                frames.send_two(self._socket, *self._outbox[0])
            except frames.Again:
                self._loop.call_later(FLUSH_RETRY_S, self._flush)
                return
            self._outbox.popleft()
        if not self.closed:
            self._recheck()

    def _recheck(self) -> None:
        """The FD is edge-triggered: a send may consume the edge of a message that arrived."""
        if not (self._receiving or self._scheduled) and frames.has_input(self._socket):
            self._scheduled = True
            self._loop.call_soon(self._receive)

    def _receive(self) -> None:
        self._scheduled, self._receiving = False, True
        try:
            drained = self._drain()
        finally:
            self._receiving = False
        if not (drained or self.closed):
            self._scheduled = True
            self._loop.call_soon(self._receive)

    def _drain(self) -> bool:
        """Take what is there; False if there may be more than one turn's share."""
        for _ in range(DRAIN_PER_TURN):
            if self.closed or not frames.has_input(self._socket):
                return True
            message = frames.recv_two(self._socket)
            if message is None:
                continue
            self.seen = time.monotonic()
            try:
                header = decode_header(message[0])
            except wire.DECODE_ERRORS:
                continue
            self._on_message(header, message[1])
        return False

    def _watch(self) -> None:
        while not self.closed:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
            except zmq.Again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._on_up()
                self._loop.call_soon(self._receive)
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.lose("refused")
            else:
                self.lose("disconnected")

    def lose(self, why: str) -> None:
        if not self.closed:
            self.close()
            self._on_lost(why)

    def close(self, linger_ms: int = 0) -> None:
        """Free the sockets. `linger_ms` lets a last BYE out."""
        if self.closed:
            return
        self.closed = True
        for fd in self._fds:
            self._loop.remove_reader(fd)
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)
        self._outbox.clear()
