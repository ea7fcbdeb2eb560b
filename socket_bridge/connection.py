"""One connection of an agent: reads request lines, answers them in order, bounds what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from beige.errors import BeigeError
from socket_bridge import protocol
from socket_bridge.desk import Desk
from socket_bridge.hangup import HangupWatch

READ_AHEAD = 64 * 1024
"""While a request is served, reading stops above this many unserved bytes."""
WRITE_HIGH = 256 * 1024
"""Above this many unread bytes of answers, no further request is served."""
LARGE = 64 * 1024
"""From here on a connection counts against its agent's budgets."""
TURN = 16
"""Lines answered before other connections get their turn, even if none had to wait."""


class Connection(asyncio.Protocol):
    """Requests are served one after another; what is not served yet stays with its sender."""

    def __init__(self, desk: Desk, hangups: HangupWatch, on_lost: Callable[[Connection], None]) -> None:
        self._desk, self._hangups, self._on_lost = desk, hangups, on_lost
        self._lines = protocol.Lines()
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._serving: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._read_paused = self._ended = False

    # --- for the desk ---------------------------------------------------------------------------------

    @property
    def unparsed(self) -> int:
        return self._lines.size

    @property
    def unread(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # --- called by the event loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH)
        self._descriptor = self._transport.get_extra_info("socket").fileno()
        refusal = self._desk.admit(self)
        if refusal is not None:
            self._give_up(refusal)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._lines.feed(data)
        if self._serving is None:
            self._serve()
        elif self._lines.size > READ_AHEAD:
            self._pause_reading()
        if self._lines.size > LARGE:
            self._check_budget()

    def eof_received(self) -> bool:
        """True keeps the connection for the answers that are still owed."""
        self._ended = True
        if self._serving is None:
            return False
        self._hangups.watch(self._descriptor, self._gone)
        return True

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: whatever runs for it is cancelled."""
        self._ended = True
        self._hangups.forget(self._descriptor)
        self._transport = None
        self._desk.leave(self)
        self._on_lost(self)
        if self._serving is not None:
            self._serving.cancel()

    # --- for the listener -------------------------------------------------------------------------------

    def stop_reading(self) -> asyncio.Task[None] | None:
        """Take no further request; the task that still serves one."""
        self._ended = True
        self._lines = protocol.Lines()
        if self._serving is None:
            self._close()
        return self._serving

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- serving ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        first = self._lines.next()
        if first is not None:
            loop = asyncio.get_running_loop()
            self._serving = loop.create_task(self._work(first), name=f"{self._desk.agent}-{self._descriptor}")

    async def _work(self, line: protocol.Line | None) -> None:
        served = 0
        try:
            while line is not None:
                answer = await self._desk.answer(line)
                if self._transport is None:
                    return
                self._transport.write(answer)
                if len(answer) > LARGE:
                    self._check_budget()
                await self._writable.wait()
                served += 1
                if served % TURN == 0:
                    await asyncio.sleep(0)
                line = self._next()
        finally:
            self._serving = None
        if self._ended:
            self._close()

    def _next(self) -> protocol.Line | None:
        line = self._lines.next()
        if self._read_paused and (line is None or self._lines.size <= READ_AHEAD):
            self._read_paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
        return line

    def _pause_reading(self) -> None:
        if not self._read_paused and self._transport is not None and not self._transport.is_closing():
            self._read_paused = True
            self._transport.pause_reading()
            self._hangups.watch(self._descriptor, self._gone)

    def _check_budget(self) -> None:
        excess = self._desk.over_budget()
        if excess is not None:
            self._give_up(excess)

    def _give_up(self, reason: BeigeError) -> None:
        """Say why, and close. Answers the client didn't read are dropped with it."""
        self._ended = True
        self._lines = protocol.Lines()
        if self._transport is not None and self.unread <= LARGE:
            self._transport.write(protocol.error_line(reason))
            self._close()
        else:
            self.abort()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _gone(self) -> None:
        self.abort()
