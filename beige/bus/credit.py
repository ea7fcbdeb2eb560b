"""Flow control of one direction of a stream: who may send how much, who has how much to take."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Signal:
    """Wakes all that wait at the moment; costs nothing while nobody does, as for most calls."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def send(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiting:  # cancelled
                self._waiting.remove(waiter)


class Sender:
    """The producing side: waits until the receiver granted an item."""

    def __init__(self, items: int = 0, size: int = 0) -> None:
        self._items, self._bytes = items, size
        self._opened = items > 0
        self._changed = Signal()
        self._error: BaseException | None = None

    def grant(self, items: int, size: int) -> None:
        self._items += items
        self._bytes += size
        self._opened = True
        self._changed.send()

    def fail(self, error: BaseException) -> None:
        """The stream is over; whoever waits for credit gets `error`."""
        self._error = error
        self._changed.send()

    async def opened(self) -> None:
        """Wait until the receiver granted anything, or the stream is over: before, nobody hears an end."""
        while not self._opened and self._error is None:
            await self._changed.wait()

    async def take(self, size: int) -> None:
        """Wait for credit for one item. An item may exceed the bytes left, never find none left."""
        while self._items <= 0 or self._bytes <= 0:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
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
        self._arrived = Signal()
        self._ended = False
        self._error: BaseException | None = None

    def put(self, body: bytes) -> None:
        self._buffer.append(body)
        self._arrived.send()

    def end(self, error: BaseException | None = None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
            self._arrived.send()

    async def get(self) -> bytes | None:
        """The next item; None at the end. Raises what `end` was given once all items are taken."""
        while not self._buffer:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            await self._arrived.wait()
        body = self._buffer.popleft()
        self._taken_items += 1
        self._taken_bytes += len(body)
        if self._taken_items * 2 >= self._window_items or self._taken_bytes * 2 >= self._window_bytes:
            if not self._ended:
                self._grant(self._taken_items, self._taken_bytes)
            self._taken_items = self._taken_bytes = 0
        return body
