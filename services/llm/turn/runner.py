"""Carries out a turn's commands in order: the model, the tools, the journal, the caller's events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from beige.errors import Cancelled, Denied, Failed
from beige.messages.llm import PromptEvent, PromptResult
from beige.messages.tools import HookName
from services.llm.conversation import AnyEntry, Hook, Prompt, ToolCall, ToolResult
from services.llm.events import (
    CallModel,
    Command,
    Emit,
    Fail,
    Finish,
    ModelFailed,
    MovedOn,
    Persist,
    PromptAccepted,
    PromptReviewed,
    Review,
    RunTool,
    Summarise,
    Summarised,
    SummaryFailed,
    ToolFinished,
    TurnCancelled,
)
from services.llm.providers.failures import ModelError
from services.llm.toolbox import Emit as Send
from services.llm.turn.core import Turn
from services.llm.turn.summary import Model, summarise

TEXT_PIECE = 64 * 1024
"""Characters of one event's text; an item of the bus has a limit."""


class Tools(Protocol):
    async def run(self, call: ToolCall) -> ToolResult: ...


class Journal(Protocol):
    """`sessions.files.Session`, as far as it is used here."""

    def append(self, entry: AnyEntry) -> None: ...
    async def sync(self) -> None: ...


class Reviews(Protocol):
    """`hooks.review.Reviewer`, as far as it is used here."""

    async def review(self, hook: HookName, text: str, model: str) -> list[Hook]: ...


class Runner:
    """One turn of one session."""

    def __init__(
        self,
        turn: Turn,
        system: Callable[[], Awaitable[str]],
        model: Model,
        tools: Tools,
        journal: Journal,
        send: Send,
        reviews: Reviews | None = None,
    ) -> None:
        """`system` gives the system prompt; it is asked once, after the prompt was written down. `reviews`:
        of the prompt; None if nobody listens to it."""
        self._turn, self._prepare, self._model = turn, system, model
        self._system: str | None = None
        self._tools, self._journal, self._send, self._reviews = tools, journal, send, reviews
        self._now: deque[Command] = deque()
        self._todo: deque[Command] = deque()

    async def run(self, prompt: Prompt) -> PromptResult:
        """The answer. Failed when the model failed; Denied when a hook refused; Cancelled, or CancelledError,
        when the turn was ended from outside. In each case the journal is complete and the session usable."""
        try:
            listened = self._reviews is not None
            await self._perform(self._turn.handle(PromptAccepted(prompt, listened)))
            while True:
                match self._todo.popleft():
                    case Finish(result):
                        return result
                    case Fail(message, refused):
                        raise Denied(message, executed="maybe") if refused else Failed(message)
                    case Review(prompt):
                        await self._review(prompt)
                    case CallModel():
                        await self._call_model()
                    case Summarise() as asked:
                        await self._summarise(asked)
                    case RunTool(call):
                        await self._perform(self._turn.handle(ToolFinished(await self._tools.run(call))))
        except (asyncio.CancelledError, Cancelled):
            self._close()
            raise

    def _close(self) -> None:
        """The turn is cancelled. The journal first catches up with what the turn has decided."""
        for command in [*self._now, *self._turn.handle(TurnCancelled())]:
            if isinstance(command, Persist):
                self._journal.append(command.entry)

    async def _review(self, prompt: Prompt) -> None:
        assert self._reviews is not None
        heard = await self._reviews.review("prePrompt", prompt.text, self._turn.model)
        await self._perform(self._turn.handle(PromptReviewed(tuple(heard))))

    async def _call_model(self) -> None:
        if self._system is None:
            self._system = await self._prepare()
        try:
            async with aclosing(self._model.stream(self._system, self._turn.messages)) as events:
                async for event in events:
                    await self._perform(self._turn.handle(event))
        except ModelError as error:
            await self._perform(self._turn.handle(ModelFailed(error)))

    async def _summarise(self, asked: Summarise) -> None:
        async def moved(event: MovedOn) -> None:
            await self._perform(self._turn.handle(event))

        try:
            answer = await summarise(self._model, asked.text, moved)
        except ModelError as error:
            await self._perform(self._turn.handle(SummaryFailed(error)))
        else:
            self._model.shortened()
            await self._perform(self._turn.handle(Summarised(answer)))

    async def _perform(self, commands: Sequence[Command]) -> None:
        """Write and tell at once; the rest waits for its turn."""
        self._now.extend(commands)
        while self._now:
            match command := self._now.popleft():
                case Persist(entry, sync):
                    self._journal.append(entry)
                    if sync:
                        await self._journal.sync()
                case Emit(event):
                    await self._emit(event)
                case _:
                    self._todo.append(command)

    async def _emit(self, event: PromptEvent) -> None:
        text = event.text
        if len(text) <= TEXT_PIECE:
            return await self._send(event)
        for at in range(0, len(text), TEXT_PIECE):
            await self._send(PromptEvent(kind=event.kind, text=text[at : at + TEXT_PIECE]))
