"""Two-frame messages over a zmq socket, without pyzmq's per-call overhead.

`send_multipart` costs 56 us for four frames; the backend's `send` and `recv` with plain int flags
7 to 14 us (docs/decisions/0002-bus-fast-path.md). With `BEIGE_PLAIN_ZMQ=1`, or on a pyzmq whose
backend looks different, the public API is used; `tests/unit/bus/test_frames.py` runs both.
"""

from __future__ import annotations

import os
from typing import Any

import zmq
from zmq import Again, ZMQError

SNDMORE = int(zmq.SNDMORE)
NOBLOCK = int(zmq.NOBLOCK)
POLLIN = int(zmq.POLLIN)
EVENTS = int(zmq.EVENTS)
SMALL = 64 * 1024
"""Bodies above stay zmq Frames, so that they are forwarded without copying."""

__all__ = [
    "NOBLOCK",
    "POLLIN",
    "Again",
    "ZMQError",
    "has_input",
    "recv_routed",
    "recv_two",
    "send_routed",
    "send_two",
]


def _backend() -> tuple[Any, Any, Any]:
    if os.environ.get("BEIGE_PLAIN_ZMQ") != "1":
        try:
            from zmq.backend import Socket

            return Socket.send, Socket.recv, Socket.get
        except (ImportError, AttributeError):
            pass
    return zmq.Socket.send, zmq.Socket.recv, zmq.Socket.getsockopt


_send, _recv, _get = _backend()


def has_input(socket: Any) -> bool:
    return bool(_get(socket, EVENTS) & POLLIN)


def send_two(socket: Any, header: bytes, body: Any) -> None:
    """[header, body], never blocking. Again if the pipe is full (nothing was sent then)."""
    _send(socket, header, SNDMORE | NOBLOCK)
    _send(socket, body, NOBLOCK)


def send_routed(socket: Any, rid: bytes, header: bytes, body: Any) -> None:
    """[rid, header, body] on a ROUTER. Again: pipe full; ZMQError EHOSTUNREACH: peer gone.
    Both are raised on the first frame, so no half message can stand on the wire."""
    _send(socket, rid, SNDMORE | NOBLOCK)
    _send(socket, header, SNDMORE)
    _send(socket, body, 0)


def recv_two(socket: Any) -> tuple[bytes, bytes] | None:
    """[header, body], or None for any other number of frames. Again if nothing is there."""
    header = _recv(socket, NOBLOCK, False)
    if not header.more:
        return None
    body = _recv(socket, 0, False)
    if body.more:
        _drop_rest(socket)
        return None
    return header.bytes, body.bytes


def recv_routed(socket: Any) -> tuple[Any, bytes, Any]:
    """(rid frame, header, body) on a ROUTER; header is b"" for any other number of frames. The rid
    frame carries the ZAP user and the connection's fd."""
    rid = _recv(socket, NOBLOCK, False)
    header = _recv(socket, 0, False)
    if not header.more:
        return rid, b"", b""
    body = _recv(socket, 0, False)
    if body.more:
        _drop_rest(socket)
        return rid, b"", b""
    return rid, header.bytes, body if len(body) > SMALL else body.bytes


def _drop_rest(socket: Any) -> None:
    while _recv(socket, 0, False).more:
        pass
