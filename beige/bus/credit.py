"""Flow control of one direction of a stream: who may send how much, who has how much to take."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Sender:
    """The producing side: waits until the receiver granted an item."""

    def __init__(self, items: int = 0, size: int = 0) -> None:
        self._items, self._bytes = items, size
        self._opened = items > 0
        self._waiter: asyncio.Event = asyncio.Event()
        self._error: BaseException | None = None

    def grant(self, items: int, size: int) -> None:
        self._items += items
        self._bytes += size
        self._opened = True
        self._waiter.set()

    def fail(self, error: BaseException) -> None:
        """The stream is over; whoever waits for credit gets `error`."""
        self._error = error
        self._waiter.set()

    async def opened(self) -> None:
        """Wait until the receiver granted anything, or the stream is over: before, nobody hears an end."""
        while not self._opened and self._error is None:
            self._waiter.clear()
            await self._waiter.wait()

    async def take(self, size: int) -> None:
        """Wait for credit for one item. An item may exceed the bytes left, never find none left."""
        while self._items <= 0 or self._bytes <= 0:
            if self._error is not None:
                raise self._error
            self._waiter.clear()
            await self._waiter.wait()
        if self._error is not None:
            raise self._error
        self._items -= 1
        self._bytes -= size


class Receiver:
    """The consuming side: buffers what was granted, and grants more as it is taken (at half)."""

    def __init__(self, items: int, size: int, grant: Callable[[int, int], None]) -> None:
        self._window_items, self._window_bytes = items, size
        self._grant = grant
        self._buffer: deque[bytes] = deque()
        self._taken_items = self._taken_bytes = 0
        self._arrived = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None

    def put(self, body: bytes) -> None:
        self._buffer.append(body)
        self._arrived.set()

    def end(self, error: BaseException | None = None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
            self._arrived.set()

    async def get(self) -> bytes | None:
        """The next item; None at the end. Raises what `end` was given once all items are taken."""
        while not self._buffer:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._arrived.clear()
            await self._arrived.wait()
        body = self._buffer.popleft()
        self._taken_items += 1
        self._taken_bytes += len(body)
        if self._taken_items * 2 >= self._window_items or self._taken_bytes * 2 >= self._window_bytes:
            if not self._ended:
                self._grant(self._taken_items, self._taken_bytes)
            self._taken_items = self._taken_bytes = 0
        return body
