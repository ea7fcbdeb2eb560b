"""One life of a plugin's process, for its tools and hooks: carries calls and their cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from beige.errors import Failed
from beige.pluginhost.child import Child
from services.tools import frames

A = TypeVar("A", frames.Done, frames.Answered)
CANCEL_SEEN_S = 2.0
"""A plugin whose event loop doesn't answer a cancellation within this time has lost its life."""
STUCK_LIMIT = 16


class Link(Child):
    worker = "services.tools.worker"

    def __init__(self, log: logging.Logger, on_end: Callable[[], None]) -> None:
        super().__init__(log, frames.host_reader(), on_end)
        self.timeouts: dict[str, float] = {}
        self._pending: dict[int, asyncio.Future[frames.Done | frames.Answered]] = {}
        self._unseen: dict[int, asyncio.TimerHandle] = {}

    async def call(self, call: frames.Call) -> frames.Done:
        """Failed: the process ended during the call. Cancellation reaches the plugin."""
        return self._expected(frames.Done, await self._ask(call))

    async def hook(self, call: frames.Hook) -> frames.Answered:
        """As `call`."""
        return self._expected(frames.Answered, await self._ask(call))

    def _expected(self, kind: type[A], answer: frames.Done | frames.Answered) -> A:
        if isinstance(answer, kind):
            return answer
        self.finish("it broke the protocol: a hook's answer to a call, or a call's to a hook")
        raise Failed("the plugin broke the protocol during the call")

    async def _ask(self, call: frames.Call | frames.Hook) -> frames.Done | frames.Answered:
        future: asyncio.Future[frames.Done | frames.Answered] = self._loop.create_future()
        self._pending[call.id] = future
        self.send(call)
        try:
            return await future
        except asyncio.CancelledError:
            self._cancel(call.id)
            raise
        finally:
            del self._pending[call.id]

    def _cancel(self, number: int) -> None:
        if not self.is_over:
            self.send(frames.Cancel(number))
            late = self._loop.call_later(CANCEL_SEEN_S, self.finish, "its event loop was blocked")
            self._unseen[number] = late

    def take(self, frame: Any) -> None:
        match frame:
            case frames.Done() | frames.Answered():
                future = self._pending.get(frame.id)
                if future is not None and not future.done():
                    future.set_result(frame)
            case frames.CancelSeen():
                timer = self._unseen.pop(frame.id, None)
                if timer is not None:
                    timer.cancel()
            case frames.Stuck():
                if frame.count >= STUCK_LIMIT:
                    self.finish(f"{frame.count} cancelled calls did not end")
            case frames.Loaded():
                self.timeouts = frame.timeouts
                self.loaded()

    def lost(self) -> None:
        for timer in self._unseen.values():
            timer.cancel()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(Failed("the plugin's process ended during the call"))
