"""A model that follows a script file, for demos and tests without a key. Always announced as such."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path

from services.llm.conversation import Assistant, Block, Text, ToolCall
from services.llm.events import MessageDone, ModelEvent, TextDelta, ToolCallDelta
from services.llm.providers.base import ModelRequest
from services.llm.providers.script import Answer, load

_PIECE = re.compile(r"\S+\s*|\s+")


class Scripted:
    scripted = True

    def __init__(self, script: Path) -> None:
        """ConfigError if the script can't be used."""
        self._scripts = load(script)

    def label(self, model: str) -> str:
        """Never a configured name alone, which could be taken for a real model's."""
        return f"scripted/{model}"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        answer = self._scripts.next_answer(request.messages)
        await asyncio.sleep(answer.wait_s)
        for piece in _PIECE.findall(answer.say):
            yield TextDelta(piece)
            await asyncio.sleep(0)
        for call in answer.calls:
            yield ToolCallDelta(call.tool)
        content = _content(answer, len(request.messages))
        yield MessageDone(
            Assistant(
                model=self.label(request.model),
                content=content,
                stop_reason="tool_use" if answer.calls else "end_turn",
                scripted=True,
            )
        )

    async def close(self) -> None:
        """Nothing is held."""


def _content(answer: Answer, position: int) -> list[Block]:
    content: list[Block] = [Text(answer.say)] if answer.say else []
    for number, call in enumerate(answer.calls):
        content.append(ToolCall(f"script_{position}_{number}", call.tool, call.args))
    return content
