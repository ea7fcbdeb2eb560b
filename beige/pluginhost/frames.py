"""How a plugin host and a plugin's own process frame what they say to each other, and its limits. Pure.

A frame on their socket pair:

    +------------------------+---------------------------------------------+
    | length: 4 bytes, big-e | MessagePack of one of the service's frames  |
    +------------------------+---------------------------------------------+

The host doesn't trust what it reads: a frame that is too long or not one of its service's ends the
plugin's process (`tests/unit/tools/test_plugin_process.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from beige.errors import Malformed
from beige.wire import DECODE_ERRORS, MAX_BODY

MAX_TO_PLUGIN = MAX_BODY + 64 * 1024
"""A call's body and its names; a plugin's configuration must fit too."""
MAX_FROM_PLUGIN = MAX_BODY - 32 * 1024
"""Whatever a plugin answers fits into a bus body."""
MAX_LOG = 8 * 1024
_LENGTH = 4


class Frame(Struct, tag=True, forbid_unknown_fields=True, array_like=True):
    """Base of all frames."""


class Close(Frame):
    """To the plugin: close it and exit."""


class NotLoaded(Frame):
    reason: Annotated[str, Meta(max_length=400)]
    """May be shown to an agent: holds no path and no text of a foreign exception."""


class Log(Frame):
    level: int
    text: Annotated[str, Meta(max_length=MAX_LOG)]


T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


def encode(frame: Frame) -> bytes:
    body = _encode(frame)
    return len(body).to_bytes(_LENGTH, "big") + body


class FrameReader(Generic[T]):
    """Cuts a byte stream into frames of one direction."""

    def __init__(self, frames: Any, limit: int) -> None:
        """`frames`: the union of what may come."""
        self._decode = msgspec.msgpack.Decoder(frames).decode
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """The frames completed by `data`. Malformed: the stream is beyond repair."""
        self._buffer += data
        found: list[T] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH:
            length = int.from_bytes(self._buffer[start : start + _LENGTH], "big")
            if length > self._limit:
                raise Malformed(f"a frame of {length} bytes is over the limit of {self._limit}")
            end = start + _LENGTH + length
            if len(self._buffer) < end:
                break
            found.append(self._one(bytes(self._buffer[start + _LENGTH : end])))
            start = end
        del self._buffer[:start]
        return found

    def _one(self, body: bytes) -> T:
        try:
            frame: T = self._decode(body)
        except DECODE_ERRORS as error:
            raise Malformed(f"an unreadable frame: {error}") from None
        return frame
