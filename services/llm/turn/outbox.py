"""Decides which pieces of an answer travel together to the caller.

A model's token is a few bytes; a message over the bus costs the same for one as for a hundred. A piece that
comes after a pause leaves at once; those that follow it within `HOLD_S` leave together.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from beige.errors import BeigeError, Failed
from beige.messages.llm import PromptEvent
from services.llm.toolbox import Emit

HOLD_S = 0.01
"""Longest time a piece waits for company, in seconds."""
HELD_LIMIT = 16 * 1024
"""Characters that leave at once."""
CLOCK_EVERY = 8
"""While pieces are held, each so many ask for the time, in case nobody else gets a turn."""
_PIECES = ("text_delta", "thinking_delta")


class Outbox:
    """What one prompt tells its caller, in order. A context manager: nothing is sent after its end."""

    def __init__(self, send: Emit, hold_s: float = HOLD_S) -> None:
        self._emit, self._hold_s = send, hold_s
        self._held: list[str] = []
        self._kind, self._size, self._sent_at = "", 0, float("-inf")
        self._sending = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None
        self._failed: BeigeError | None = None

    async def send(self, event: PromptEvent) -> None:
        """Send it, or hold it. Raises what sending raised, if need be with the next event."""
        if self._failed is not None:
            raise self._failed
        if event.kind not in _PIECES:
            async with self._sending:
                await self._release()
                return await self._emit(event)
        if self._kind != event.kind or self._size + len(event.text) > HELD_LIMIT:
            await self._flush()
        self._held.append(event.text)
        self._kind, self._size = event.kind, self._size + len(event.text)
        if self._flusher is not None and len(self._held) % CLOCK_EVERY:
            return  # it leaves with the others
        if self._wait_s() <= 0:
            await self._flush()
            await asyncio.sleep(0)  # an SDK that has much to tell gives nobody else a turn
        elif self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_later(), name="outbox")

    def _wait_s(self) -> float:
        return self._sent_at + self._hold_s - asyncio.get_running_loop().time()

    async def _flush_later(self) -> None:
        try:
            while self._held:
                await asyncio.sleep(self._wait_s())
                await self._flush()
        except BeigeError as error:
            self._failed = error
        finally:
            self._flusher = None

    async def _flush(self) -> None:
        async with self._sending:
            await self._release()

    async def _release(self) -> None:
        if not self._held:
            return
        event = PromptEvent(kind=self._kind, text="".join(self._held))  # type: ignore[arg-type]
        self._held, self._size = [], 0
        self._sent_at = asyncio.get_running_loop().time()
        await self._emit(event)

    async def __aenter__(self) -> Outbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What is held is sent, unless the prompt was cancelled or its caller is gone."""
        try:
            if self._failed is None and (error is None or isinstance(error, Failed)):
                await self._flush()
        finally:
            if self._flusher is not None:
                self._flusher.cancel()
                await asyncio.gather(self._flusher, return_exceptions=True)
