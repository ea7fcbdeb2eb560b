"""Asks the agent's models for a summary. Touches them alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from services.llm.conversation import Assistant, Message, Prompt
from services.llm.events import MessageDone, ModelEvent, MovedOn
from services.llm.providers.failures import ModelError
from services.llm.tools import SPECS, ToolSpec
from services.llm.turn.compaction import SYSTEM


class Model(Protocol):
    """`models.attempts.TurnModels`, as far as it is used by a turn."""

    def stream(
        self, system: str, conversation: Sequence[Message], tools: Sequence[ToolSpec] = SPECS
    ) -> AsyncGenerator[ModelEvent, None]: ...
    def shortened(self) -> None: ...
    def apart(self) -> Model: ...


async def summarise(model: Model, text: str, moved: Callable[[MovedOn], Awaitable[None]]) -> Assistant:
    """The answer to `text` (`compaction.question`), never an empty one. ModelError as for any other."""
    done: Assistant | None = None
    async with aclosing(model.apart().stream(SYSTEM, [Prompt(text=text)], ())) as events:
        async for event in events:
            if isinstance(event, MovedOn):
                await moved(event)
            elif isinstance(event, MessageDone):
                done = event.message
    if done is None or not done.text.strip() or done.stop_reason == "refusal":
        raise ModelError("bad_response", f"{done.model if done else 'the model'}: it wrote no summary")
    return done
