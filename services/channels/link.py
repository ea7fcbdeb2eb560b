"""One life of a channel's process: its asks become tasks, their answers and events frames."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from beige.errors import BeigeError
from beige.messages.llm import PromptEvent
from beige.pluginhost.child import Child
from services.channels import frames
from services.channels.desk import Desk

MAX_ASKS = 256
"""Open at once; more ends the process: its own side keeps well below."""
_encode = msgspec.msgpack.Encoder().encode


class Link(Child):
    worker = "services.channels.worker"

    def __init__(self, desk: Desk, log: logging.Logger, on_end: Callable[[], None]) -> None:
        super().__init__(log, frames.host_reader(), on_end)
        self._desk = desk
        self._asks: dict[int, asyncio.Task[None]] = {}
        self._windows: dict[int, asyncio.BoundedSemaphore] = {}

    def take(self, frame: Any) -> None:
        match frame:
            case frames.Loaded():
                self.loaded()
            case frames.Ended():
                self.finish(frame.reason)
            case frames.Took():
                self._took(frame.id)
            case frames.Abandon():
                if (task := self._asks.get(frame.id)) is not None:
                    task.cancel()
            case _:
                self._begin(frame)

    def _took(self, number: int) -> None:
        """Stops a plugin that takes what was never sent, and so would have a prompt's events pile up here
        (`tests/attacks/test_channels.py`)."""
        try:
            if (window := self._windows.get(number)) is not None:
                window.release()
        except ValueError:
            self.finish("it took more events than were sent")

    def pause_writing(self) -> None:
        """It asks and does not read the answers: no more is taken from it until it does. What has been asked
        already is bounded, by `MAX_ASKS` and each prompt's window."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def lost(self) -> None:
        """Nobody hears the answers: what runs for this process ends."""
        for task in self._asks.values():
            task.cancel()

    def _begin(self, ask: frames.AnyAsk) -> None:
        if ask.id in self._asks or len(self._asks) >= MAX_ASKS:
            self.finish("it asked too much at once, or twice under one number")
            return
        task = self._loop.create_task(self._serve(ask), name=f"channel ask {ask.id}")
        self._asks[ask.id] = task
        self._windows[ask.id] = asyncio.BoundedSemaphore(frames.WINDOW)
        task.add_done_callback(lambda _: self._forget(ask.id))

    def _forget(self, number: int) -> None:
        del self._asks[number], self._windows[number]

    async def _serve(self, ask: frames.AnyAsk) -> None:
        window = self._windows[ask.id]

        async def on_event(event: PromptEvent) -> None:
            await window.acquire()
            self.send(frames.Event(ask.id, event))

        try:
            reply = await self._desk.serve(ask, on_event)
        except BeigeError as error:
            self.send(frames.Refused(ask.id, error.code, error.message[:4096], error.executed))
        except Exception:
            self._log.exception("an ask failed")
            self.send(frames.Refused(ask.id, "failed", "internal error: see the log of channels", "maybe"))
        else:
            self.send(frames.Reply(ask.id, _encode(reply)))
