"""Runs the turns of one session: one at a time, later prompts wait here; what happens goes to the screen."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import msgspec

from beige.errors import BeigeError
from beige.tui.api import Api, ApiError, Away
from beige.tui.events import TurnEvent, decode_event, decode_result
from beige.tui.follow import Back, Follower, Gone, Lost, Step
from beige.tui.sse import ServerEvent
from beige.tui.status import Status
from beige.tui.transcript import Transcript

WINDOW = 256
"""Events read ahead of the screen; when they are more, the gateway waits for us."""
QUIET_ENDS = ("", "end_turn", "stop", "tool_use")


class Turns:
    def __init__(self, api: Api, transcript: Transcript, status: Status, *, changed: Callable[[], None],
                 reload: Callable[[str], Awaitable[None]]) -> None:  # fmt: skip
        """`changed`: the status is not what it was. `reload`: show the session from its file, and say why."""
        self._api, self._transcript, self._status = api, transcript, status
        self._changed, self._reload = changed, reload
        self._waiting: deque[str] = deque()
        self._task: asyncio.Task[None] | None = None
        self._follower = Follower(api, "", "")
        self._cut_off = ""
        """Code of the error that ended the turn: what its open tool calls are said to be."""

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def open(self, agent: str, session: str) -> None:
        """Another session. A turn under way goes on without being watched."""
        await self.leave()
        self._follower = Follower(self._api, agent, session)

    def send(self, text: str) -> None:
        if self.running:
            self._waiting.append(text)
            self._count()
        else:
            self._task = asyncio.create_task(self._safely(self._all(text)), name="turns")

    def adopt(self) -> None:
        """Watch the turn that is running in this session already."""
        self._task = asyncio.create_task(self._safely(self._adopted()), name="turns")

    async def cancel(self) -> str:
        """What is to be said besides the turn's own end. Prompts that wait here are dropped."""
        dropped = f"{len(self._waiting)} waiting prompts dropped" if self._waiting else ""
        self._waiting.clear()
        self._count()
        if not self.running:
            return "nothing is running"
        try:
            await self._api.cancel(self._status.agent, self._status.session)
        except (Away, ApiError) as error:
            await self.leave()
            return f"not cancelled, but no longer watched: {failure(error)}; {dropped}".rstrip("; ")
        return dropped

    async def leave(self) -> None:
        self._waiting.clear()
        self._count()
        task, self._task = self._task, None
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _count(self) -> None:
        self._status.queued = len(self._waiting)
        self._changed()

    async def _safely(self, turns: Coroutine[Any, Any, None]) -> None:
        """A fault of this client is said, and costs no more than the view of a turn."""
        try:
            await turns
        except Exception as error:
            text = f"this client failed ({type(error).__name__}: {error}); /resume shows the session"
            await self._transcript.note(text, "error")

    async def _all(self, text: str) -> None:
        while True:
            await self._transcript.show([TurnEvent("prompt", text=text)])
            if not await self._watch(self._follower.turn(text)):
                self._waiting.clear()
            if not self._waiting:
                self._count()
                return
            text = self._waiting.popleft()
            self._count()

    async def _adopted(self) -> None:
        if await self._watch(self._follower.rest()) and self._waiting:
            await self._all(self._waiting.popleft())

    async def _watch(self, steps: AsyncGenerator[Step, None]) -> bool:
        """One turn until its end; False if it was not begun or is gone."""
        self._status.began()
        self._changed()
        self._cut_off = ""
        try:
            gone = await self._pump(steps)
        except (Away, ApiError, BeigeError, ValueError) as error:
            again = "; Up brings the prompt back" if isinstance(error, Away) else ""
            await self._transcript.note(failure(error) + again, "error")
            return False
        finally:
            self._status.ended()
            await self._transcript.end_turn(self._cut_off or "its end was not seen")
            self._changed()
        if gone:
            await self._reload(gone)
        return not gone

    async def _pump(self, steps: AsyncGenerator[Step, None]) -> str:
        """Show what comes, as much at once as is there. Why the rest can't be had, or ""."""
        inbox: asyncio.Queue[Step | Exception | None] = asyncio.Queue(WINDOW)
        reader = asyncio.create_task(_read(steps, inbox), name="events")
        try:
            while True:
                batch = [await inbox.get()]
                while not inbox.empty():
                    batch.append(inbox.get_nowait())
                events: list[TurnEvent] = []
                for step in batch:
                    if isinstance(step, ServerEvent) and step.event not in ("result", "error"):
                        events.append(decode_event(step.data))
                        self._status.saw(events[-1])
                        continue
                    await self._transcript.show(events)
                    events.clear()
                    if step is None:
                        return ""
                    if isinstance(step, Exception):
                        raise step
                    if isinstance(step, Gone):
                        return step.why
                    await self._special(step)
                await self._transcript.show(events)
                self._changed()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _special(self, step: ServerEvent | Lost | Back) -> None:
        if isinstance(step, Lost):
            self._status.connection = "reconnecting"
            await self._transcript.note(f"connection lost ({step.why}); trying again")
        elif isinstance(step, Back):
            self._status.connection = "connected"
            await self._transcript.note("connected again; nothing was missed")
        elif step.event == "error":
            error = _told(step.data)
            self._cut_off = error.code
            await self._transcript.note(failure(error), "error")
        else:
            result = decode_result(step.data)
            if result.stop_reason not in QUIET_ENDS:
                await self._transcript.note(f"the turn stopped: {result.stop_reason}")
        self._changed()


async def _read(steps: AsyncGenerator[Step, None], inbox: asyncio.Queue[Step | Exception | None]) -> None:
    try:
        async with aclosing(steps):
            async for step in steps:
                await inbox.put(step)
        await inbox.put(None)
    except (Away, ApiError, BeigeError) as error:
        await inbox.put(error)


def _told(data: str) -> ApiError:
    try:
        found = msgspec.json.decode(data)
        error = found.get("error", found)
        return ApiError(0, str(error["code"]), str(error["message"]), str(error.get("executed", "no")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ApiError(0, "failed", "the turn failed, and the gateway's word on it can't be read")


def failure(error: Exception) -> str:
    """For a person: what is wrong, and whether the work may have been done."""
    if isinstance(error, ApiError):
        if error.code == "cancelled":
            return "cancelled"
        maybe = " (it may have been executed)" if error.executed == "maybe" else ""
        return f"{error.message}{maybe}"
    if isinstance(error, Away):
        return f"no connection to the gateway ({error})"
    return str(error)
