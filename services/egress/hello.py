"""Reads which server a TLS client asks for: its bytes in, the name out. No I/O.

OpenSSL does the parsing, as the server of a handshake that is given up as soon as the ClientHello is read.
What follows is not looked at: a name inside an encrypted ClientHello or inside the connection (a Host header
of another site at the same address) can't be seen from here.
"""

from __future__ import annotations

import ssl
from typing import Any, cast

from beige.destinations import canonical_host, is_address
from beige.errors import Malformed

MAX_HELLO = 64 * 1024
"""Bytes; usual ones have 500 to 2000."""
TLS_PORT = 443
_HANDSHAKE = b"\x16"
"""The first byte of a TLS connection."""


def _note(tls: Any, name: str | None, _: ssl.SSLContext) -> int:
    tls.asked = name
    return ssl.ALERT_DESCRIPTION_CLOSE_NOTIFY


_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
_CONTEXT.sni_callback = _note
_UNREAD = object()


class Hello:
    """The beginning of a tunnel to `host`. Feed it bytes until it is `done`; `wrong` says why not to send
    them on, if so."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._incoming = ssl.MemoryBIO()
        self._tls = cast(Any, _CONTEXT.wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True))
        self._tls.asked = _UNREAD
        self._size = 0
        self.required = port == TLS_PORT
        self.done = False
        self.wrong = ""

    def feed(self, data: bytes) -> None:
        if self._size == 0 and not data.startswith(_HANDSHAKE):
            self._end("no TLS" if self.required else "")
            return
        self._size += len(data)
        if self._size > MAX_HELLO:
            self._end(f"no ClientHello within {MAX_HELLO} bytes")
            return
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError:
            pass  # given up by `_note`, or no TLS that OpenSSL would speak
        self._end("no ClientHello" if self._tls.asked is _UNREAD else self._judge(self._tls.asked))

    def _judge(self, asked: str | None) -> str:
        """Domain fronting: the connection was allowed for one name, the TLS in it asks for another."""
        if asked is None:
            return "" if is_address(self._host) else "TLS that names no server"
        try:
            same = canonical_host(asked) == self._host
        except Malformed:
            same = False
        return "" if same else f"TLS for {asked[:100]!r}"

    def _end(self, wrong: str) -> None:
        self.done, self.wrong = True, wrong
