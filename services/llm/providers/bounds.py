"""Bounds what a provider's server can do to this process: how much it answers, and where it sends us.

The SDKs read a stream's line, and an error's body, however long it is; and they follow redirects with
the key in a header.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable
from typing import Any

from services.llm.providers.failures import ModelError

ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of one answer, uncompressed. The longest answers of models have a twentieth of it."""
EVENT_LIMIT = 8 * 1024 * 1024
"""Bytes of one event in it, or of an error's body."""
EVENT_WORK = 2**31
"""Parts (lines, or pieces as they arrive) of an event times its bytes: an SDK copies what it has of an event
with each part that is added, and the event loop stands still meanwhile."""
_BLANK = (b"\n\n", b"\r\n\r\n", b"\r\r")


def client_options() -> dict[str, Any]:
    """For the HTTP client of either SDK, whichever library theirs is built on.

    No redirects: `baseUrl` alone decides where a key goes, and `x-api-key` would be sent along to another
    host (`tests/unit/llm/providers/test_provider_bounds.py`).
    """

    async def bound(response: Any) -> None:
        response.aiter_bytes = _bounded(response.aiter_bytes)

    return {"event_hooks": {"response": [bound]}, "follow_redirects": False}


class Meter:
    """How much of an answer has come."""

    def __init__(self) -> None:
        self.bytes = self.event_bytes = self.event_parts = 0

    def within(self, piece: bytes) -> bool:
        """False when `piece` is too much. A blank line that is spread over two pieces is missed, which
        does no harm: there is another one after each event."""
        self.bytes += len(piece)
        at = max(piece.rfind(blank) for blank in _BLANK)
        if at >= 0:
            self.event_bytes = self.event_parts = 0
            piece = piece[at:]
        self.event_bytes += len(piece)
        self.event_parts += 1 + piece.count(b"\n") + piece.count(b"\r")
        return (
            self.bytes <= ANSWER_LIMIT
            and self.event_bytes <= EVENT_LIMIT
            and self.event_bytes * self.event_parts <= EVENT_WORK
        )


def _bounded(read: Callable[..., AsyncIterator[bytes]]) -> Callable[..., AsyncIterator[bytes]]:
    """`read`, which all ways to a response's body go through. Stops a server from filling this process's
    memory, or stopping it for all its sessions, with one endless event
    (`tests/unit/llm/providers/test_provider_bounds.py`)."""

    async def reading(*arguments: Any, **options: Any) -> AsyncIterator[bytes]:
        meter = Meter()
        async for piece in read(*arguments, **options):
            if meter.bytes == 0:
                piece = piece.removeprefix(BOM_UTF8)  # the SDKs would lose the first event over it
            if not meter.within(piece):
                raise ModelError("bad_response", f"the answer is too long ({meter.bytes} bytes so far)")
            yield piece

    return reading
