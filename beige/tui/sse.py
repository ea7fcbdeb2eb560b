"""Decides what a stream of server-sent events says. Bytes in, events out.

    id: <job>-<n>
    event: text_delta
    data: {"kind": "text_delta", "text": "..."}
    (empty line)

The WHATWG's rules (HTML, 9.2.6), without `retry`. Trust: the gateway's word, but bounded all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from beige.errors import TooLarge

MAX_EVENT = 2 * 1024 * 1024
"""Bytes of one event; the bus allows bodies of 1 MiB."""


@dataclass(frozen=True)
class ServerEvent:
    id: str
    event: str
    data: str


class Decoder:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._lines: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[ServerEvent]:
        """The events that are complete now. TooLarge for one that never ends."""
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        events = []
        for line in lines:
            self._size += len(line)
            if found := self._line(line.removesuffix(b"\r").decode("utf-8", "replace")):
                events.append(found)
            self._check()
        self._check()
        return events

    def _check(self) -> None:
        if self._size + len(self._buffer) > MAX_EVENT:
            raise TooLarge(f"the gateway sent an event of more than {MAX_EVENT} bytes")

    def _line(self, line: str) -> ServerEvent | None:
        if line:
            if not line.startswith(":"):
                self._lines.append(line)
            else:
                self._size = sum(map(len, self._lines))
            return None
        fields: dict[str, list[str]] = {}
        for text in self._lines:
            name, _, value = text.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
        self._lines, self._size = [], 0
        if "data" not in fields:
            return None
        last = {name: values[-1] for name, values in fields.items()}
        return ServerEvent(last.get("id", ""), last.get("event", ""), "\n".join(fields["data"]))
