"""What chat completions and responses have in common: the text of a turn, its usage, SSE framing. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from beige.errors import BeigeError
from beige.messages.llm import PromptEvent, PromptResult
from services.gateway.errors import HttpError
from services.gateway.jobs import Event

DONE = b"data: [DONE]\n\n"
ALIVE = b": still here\n\n"
LIMITED = frozenset({"max_tokens", "max_turns", "context_full"})
"""Stop reasons of an answer that is not the whole one."""
_SHOWN = frozenset({"text_delta", "message_end", "model_fallback"})


class Answer(Protocol):
    """One response on its way out, in the words of one of the APIs. Methods return SSE."""

    id: str

    def begin(self) -> bytes: ...

    def text(self, text: str) -> bytes: ...

    def end(self, text: str, result: PromptResult) -> bytes: ...

    def error(self, error: BeigeError | HttpError) -> bytes: ...

    def whole(self, result: PromptResult) -> bytes:
        """The response that is not streamed: JSON."""
        ...


class Text:
    """What the agent says in a turn, over all its model calls. Its tools run on our side: they are not
    OpenAI's tool calls, which a client would try to run."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._pause = False

    def add(self, events: Iterable[Event]) -> str:
        """What these events add to it."""
        new: list[str] = []
        for event in events:
            if event.kind not in _SHOWN:
                continue
            if event.kind != "text_delta":
                self._pause = bool(self._pieces or new)
                continue
            said = msgspec.json.decode(event.data, type=PromptEvent).text
            new.append("\n\n" + said if self._pause else said)
            self._pause = False
        self._pieces += new
        return "".join(new)

    def __str__(self) -> str:
        return "".join(self._pieces)


def counts(usage: dict[str, int]) -> tuple[int, int, int, int, int]:
    """Input (all of it), of it read from and written to the cache; output, of it reasoning."""
    read, written = usage.get("cache_read_tokens", 0), usage.get("cache_write_tokens", 0)
    given = usage.get("input_tokens", 0) + read + written
    return given, read, written, usage.get("output_tokens", 0), usage.get("reasoning_tokens", 0)


def sse(data: dict[str, Any], event: str = "") -> bytes:
    head = b"event: " + event.encode() + b"\n" if event else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"
