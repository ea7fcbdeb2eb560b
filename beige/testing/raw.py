"""A peer with no manners: a bare DEALER for tests that attack the bus."""

from __future__ import annotations

import os
import time
from typing import Any

import zmq

from beige import wire
from beige.wire import Header, decode_header, encode_header


class RawPeer:
    """Speaks whatever it is told to. Use as a context manager; `admitted` says whether the
    handshake succeeded."""

    def __init__(
        self,
        endpoint: str,
        user: str | None = None,
        secret: str | None = None,
        *,
        routing_id: bytes | None = None,
        wait_s: float = 2.0,
        kind: int = zmq.DEALER,
    ) -> None:
        self._context: Any = zmq.Context()
        self.socket: Any = self._context.socket(kind)
        self.socket.linger, self.socket.immediate = 0, 1
        if kind == zmq.DEALER:
            self.socket.routing_id = routing_id or b"t" + os.urandom(15)
        if user is not None:
            self.socket.plain_username = user.encode()
            self.socket.plain_password = (secret or "").encode()
        self._monitor = self.socket.get_monitor_socket()
        self.socket.connect(endpoint)
        self.admitted = self._handshake(wait_s)

    def _handshake(self, wait_s: float) -> bool:
        failures = (
            zmq.EVENT_HANDSHAKE_FAILED_AUTH,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        )
        end = time.monotonic() + wait_s
        while self._monitor.poll(max(0, int((end - time.monotonic()) * 1000))):
            event = int.from_bytes(self._monitor.recv_multipart()[0][:2], "little")
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return True
            if event in failures:
                return False
        return False

    def send(self, header: Header | bytes, body: bytes = b"") -> None:
        encoded = header if isinstance(header, bytes) else encode_header(header)
        self.socket.send_multipart([encoded, body])

    def hello(self, service: str = "", capacity: int = 0) -> Header:
        self.send(Header(type=wire.HELLO, service=service, credit=capacity))
        return self.receive()[0]

    def receive(self, wait_s: float = 8.0) -> tuple[Header, bytes]:
        """The next message that is no heartbeat; TimeoutError if none comes."""
        end = time.monotonic() + wait_s
        while (left := end - time.monotonic()) > 0:
            if self.socket.poll(int(left * 1000) + 1):
                header, body = self.socket.recv_multipart()
                decoded = decode_header(header)
                if decoded.type != wire.HB:
                    return decoded, body
        raise TimeoutError("the broker said nothing")

    def close(self) -> None:
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(0)
        self._context.term()

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
