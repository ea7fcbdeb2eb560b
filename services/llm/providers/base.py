"""What a provider is: one foreign API behind a stream of model events."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from services.llm.conversation import Assistant, Block, Message, ToolCall
from services.llm.events import ModelEvent
from services.llm.tools import ToolSpec

ThinkingLevel = Literal["off", "minimal", "low", "medium", "high"]


@dataclass(frozen=True)
class ModelRequest:
    model: str
    """The provider's own name for the model."""
    system: str
    messages: Sequence[Message]
    """Ends with a prompt or with the results of every call of the last answer."""
    tools: Sequence[ToolSpec]
    thinking_level: ThinkingLevel = "off"
    max_tokens: int | None = None


class Provider(Protocol):
    """One configured provider. Holds its key; many streams at once."""

    scripted: bool

    def label(self, model: str) -> str:
        """How the model is called in results and journals: `provider/model`."""
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """One answer, in order, `MessageDone` last. Raises `ModelError`, and nothing else, when it
        fails; it never retries. Close it (`aclose`) to give up the connection."""
        ...

    async def close(self) -> None: ...


# --- usage ------------------------------------------------------------------------------------------

USAGE = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
"""The keys of `Assistant.usage`, the same for every API. A key is absent when its number is 0 or was not
told; a provider that tells nothing gives `{}`.

| key | what it counts |
|---|---|
| `input_tokens` | input billed at the plain price: what was neither read from nor written to the cache |
| `cache_read_tokens` | input read from the provider's prompt cache; never counted in `input_tokens` |
| `cache_write_tokens` | input written to the cache; never counted in `input_tokens` |
| `output_tokens` | everything the model wrote, its reasoning included |
| `reasoning_tokens` | the part of `output_tokens` that was reasoning: for information, never added |

So the size of a request is input + cache_read + cache_write, and its price is the sum of the first four
with their prices. Anthropic counts this way; OpenAI's two APIs count cached tokens as input, too, and
their providers subtract them here."""
MOST_TOKENS = 1_000_000_000
"""More than any call can use: a larger number is a broken server's."""


def usage(**counted: object) -> dict[str, int]:
    """Numbers of a provider under the keys of `USAGE`. They are foreign: anything but a positive whole
    number is left out, so that no server can lower what a call is said to have used
    (`tests/unit/llm/providers/test_usage.py`)."""
    unknown = counted.keys() - set(USAGE)
    assert not unknown, unknown
    return {name: found for name in USAGE if (found := tokens(counted.get(name)))}


def tokens(value: object) -> int:
    """`value` if it is a number of tokens, else 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_TOKENS:
        return 0
    return int(value)


def all_input_usage(
    total: object, cached: object, written: object, output: object, reasoning: object
) -> dict[str, int]:
    """`usage` for APIs whose number of input tokens, `total`, includes what was cached."""
    read, wrote = tokens(cached), tokens(written)
    return usage(
        input_tokens=tokens(total) - read - wrote,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=wrote,
        reasoning_tokens=reasoning,
    )


# --- foreign text -----------------------------------------------------------------------------------

_MAX_ID = 128
_object = msgspec.json.Decoder(dict[str, Any]).decode


def tool_call(tool_id: str, name: str, raw: str) -> ToolCall:
    """A call as the model made it. Its pieces are foreign text: `raw` arguments that are no JSON
    object are kept in `invalid`, so that the model can be told; a missing id is made up."""
    tool_id = clean(tool_id)[:_MAX_ID] or _made_up()
    name = clean(name)[:_MAX_ID] or "(unnamed)"
    if not raw.strip():
        return ToolCall(tool_id, name)
    try:
        return ToolCall(tool_id, name, _object(raw))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ToolCall(tool_id, name, invalid=clean(raw))


def unique_ids(message: Assistant, conversation: Sequence[Message]) -> Assistant:
    """`message` with new ids for calls whose id was used before: small servers number the calls of each
    answer from 0, and APIs refuse a conversation in which two calls have the same one."""
    told = [call for said in conversation if isinstance(said, Assistant) for call in said.tool_calls]
    taken = {wire_id(call.id) for call in told}
    content: list[Block] = []
    for block in message.content:
        if isinstance(block, ToolCall):
            if wire_id(block.id) in taken:
                block = msgspec.structs.replace(block, id=_made_up())
            taken.add(wire_id(block.id))
        content.append(block)
    return msgspec.structs.replace(message, content=content)


def _made_up() -> str:
    return f"call_{secrets.token_hex(8)}"


def arguments(told: object) -> str:
    """Arguments, or a piece of them, as JSON text; some servers send an object."""
    return told if isinstance(told, str) else json.dumps(told) if told else ""


def clean(text: str) -> str:
    """`text` without halves of surrogate pairs, which JSON can carry and UTF-8 can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def wire_id(tool_id: str) -> str:
    """A tool call's id as every API accepts it: ids of one provider may be shown to another."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", tool_id)[:40] or "call"
