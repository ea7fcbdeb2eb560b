"""ZMTP 3.1 by hand (RFC 37, PLAIN: RFC 24), for peers that libzmq would not let misbehave."""

from __future__ import annotations

import socket
from pathlib import Path


class Zmtp:
    """One raw connection to a Unix socket. Context manager."""

    def __init__(self, path: Path, timeout_s: float = 5.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        self.socket.connect(str(path))

    def __enter__(self) -> Zmtp:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def handshake(self, user: str, secret: str, **properties: bytes) -> None:
        """Become a DEALER as `user`; `properties` are further metadata, `_` standing for `-`."""
        self.socket.sendall(
            b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00" + b"PLAIN".ljust(20, b"\0") + b"\0" + b"\0" * 31
        )
        self._take(64)
        self._command(b"\x05HELLO" + _short(user.encode()) + _short(secret.encode()))
        self._expect(b"\x07WELCOME")
        extra = b"".join(
            _property(name.replace("_", "-").encode(), value) for name, value in properties.items()
        )
        self._command(b"\x08INITIATE" + _property(b"Socket-Type", b"DEALER") + extra)
        self._expect(b"\x05READY")

    def send(self, *frames: bytes) -> None:
        for number, frame in enumerate(frames):
            more = 1 if number < len(frames) - 1 else 0
            size = bytes([len(frame)]) if len(frame) < 256 else len(frame).to_bytes(8, "big")
            self.socket.sendall(bytes([more | (0 if len(frame) < 256 else 2)]) + size + frame)

    def receive(self) -> list[bytes]:
        """The frames of the next message. EOFError if the other side closed."""
        frames = []
        while True:
            flags, body = self._frame()
            if flags & 4:
                continue  # a command: PING
            frames.append(body)
            if not flags & 1:
                return frames

    def _command(self, body: bytes) -> None:
        self.socket.sendall(b"\x04" + _short(body))

    def _expect(self, start: bytes) -> None:
        body = self._frame()[1]
        if not body.startswith(start):
            raise ConnectionRefusedError(body[:100])

    def _frame(self) -> tuple[int, bytes]:
        flags = self._take(1)[0]
        size = int.from_bytes(self._take(8 if flags & 2 else 1), "big")
        return flags, self._take(size)

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            got = self.socket.recv(count - len(data))
            if not got:
                raise EOFError("the broker closed the connection")
            data += got
        return data


def _short(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def _property(name: bytes, value: bytes) -> bytes:
    return _short(name) + len(value).to_bytes(4, "big") + value
