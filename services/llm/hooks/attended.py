"""A model whose answers an agent's hooks attend to: held back until they have decided. No I/O of its own.

What a model writes could be shown word by word, and a hook could only say afterwards that it should not have
been. So an agent with a deciding `postResponse` hook gets each answer's text in one piece, and its thoughts
not at all: nobody looked at them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from services.llm.conversation import Message
from services.llm.events import MessageDone, ModelEvent, MovedOn, TextDelta, ThinkingDelta
from services.llm.hooks.chain import said
from services.llm.hooks.review import Reviewer
from services.llm.models.attempts import TurnModels
from services.llm.tools import SPECS, ToolSpec
from services.llm.turn.summary import Model


class Attended:
    """`turn.summary.Model`, with hooks."""

    def __init__(self, model: TurnModels, reviewer: Reviewer, primary: str, last: str) -> None:
        """`primary`: the label of the model that is asked first; `last`: of the one that answered last in
        the session."""
        self._model, self._reviewer = model, reviewer
        self._primary, self._last = primary, last
        self._holds = bool(reviewer.deciding("postResponse"))

    def shortened(self) -> None:
        self._model.shortened()

    def apart(self) -> TurnModels:
        """For a summary, which is for the model: nothing of it is shown during a turn."""
        return self._model.apart()

    async def stream(
        self, system: str, conversation: Sequence[Message], tools: Sequence[ToolSpec] = SPECS
    ) -> AsyncGenerator[ModelEvent, None]:
        reason = ""
        async with aclosing(self._model.stream(system, conversation, tools)) as events:
            async for event in events:
                match event:
                    case TextDelta() | ThinkingDelta() if self._holds:
                        continue
                    case MessageDone():
                        self._note_model(event.message.model, reason)
                        async for reviewed in self._reviewed(event):
                            yield reviewed
                    case _:
                        reason = event.reason if isinstance(event, MovedOn) else reason
                        yield event

    async def _reviewed(self, done: MessageDone) -> AsyncGenerator[ModelEvent, None]:
        message = done.message
        text = message.text
        found = await self._reviewer.review("postResponse", text, message.model) if text else []
        shown = said(text, found)
        if self._holds and shown:
            yield TextDelta(shown)
        yield MessageDone(message, tuple(found))

    def _note_model(self, model: str, reason: str) -> None:
        """Told once, when the session ends up on another model than its first, not with every answer."""
        if model not in (self._primary, self._last):
            self._reviewer.switched(model, self._primary, reason)
        self._last = model


def attended(model: TurnModels, reviewer: Reviewer, primary: str, spoke: Sequence[str] = ()) -> Model:
    """The model itself, without a detour, if nobody listens to its answers. `spoke`: the labels of those that
    answered before in the session."""
    return Attended(model, reviewer, primary, spoke[-1] if spoke else "") if reviewer.attends else model
