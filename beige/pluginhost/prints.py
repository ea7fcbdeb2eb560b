"""Decides which of the lines a plugin prints or logs reach the service's log. Pure.

A plugin that prints for ever must fill neither the disk nor the host's time
(`tests/unit/pluginhost/test_prints.py`): lines are cut, and above a rate they are counted, not kept.
"""

from __future__ import annotations

MAX_LINE = 2000
LINES_PER_S = 50
_BURST = 200


class Throttle:
    """A token bucket: `_BURST` lines at once, `LINES_PER_S` sustained."""

    def __init__(self) -> None:
        self._tokens = float(_BURST)
        self._last = 0.0
        self.dropped = 0

    def allow(self, now: float) -> bool:
        self._tokens = min(_BURST, self._tokens + (now - self._last) * LINES_PER_S)
        self._last = now
        if self._tokens < 1:
            self.dropped += 1
            return False
        self._tokens -= 1
        return True

    def take_dropped(self) -> int:
        count, self.dropped = self.dropped, 0
        return count


class Prints:
    """Bytes in, lines to log out."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._rest = b""

    def feed(self, data: bytes, now: float) -> list[str]:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:MAX_LINE]
        return [self._text(line) for line in lines if line.strip() and self._throttle.allow(now)]

    def end(self) -> list[str]:
        """The last line, if it had no newline."""
        rest, self._rest = self._rest, b""
        return [self._text(rest)] if rest.strip() else []

    def _text(self, line: bytes) -> str:
        text = line[:MAX_LINE].decode(errors="replace")
        return "".join(c if c.isprintable() else " " for c in text)
