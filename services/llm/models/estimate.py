"""Decides how many tokens something has for which no provider has counted them. Pure.

Rather too many than too few: the numbers reserve and charge budgets (docs/llm.md, "Budgets"). English has
about four bytes a token, source code three, and a Chinese character, of three bytes, about one token.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from beige import money
from beige.messages.policy import LeaseReport, Usage
from services.llm.conversation import Assistant, Image, Message, Prompt, Text, Thinking, ToolCall, ToolResult
from services.llm.events import ModelEvent, TextDelta, ThinkingDelta, ToolCallDelta
from services.llm.providers.failures import ModelError
from services.llm.tools import SPECS

BYTES_PER_TOKEN = 3
IMAGE_TOKENS = 5000
"""More than any provider counts for one."""
MOST_TOKENS = 10_000_000
"""As `beige.messages.policy.Tokens`: a server that counts more is broken, and its numbers are not used."""
UNTOUCHED = frozenset({"rate_limited", "overloaded", "auth", "billing", "bad_request", "context_too_long",
                       "connection"})  # fmt: skip
"""Failures of calls for which the provider did nothing."""

_TOOLS_BYTES = sum(len(msgspec.json.encode(tool.schema)) + len(tool.description) for tool in SPECS)


def request_tokens(system: str, conversation: Sequence[Message]) -> int:
    """Of a request with this system prompt and conversation, and our tools."""
    size = _TOOLS_BYTES + _size(system) + sum(_message_size(message) for message in conversation)
    return min(tokens(size), MOST_TOKENS)


def tokens(size: int) -> int:
    """Of so many bytes of text."""
    return -(-size // BYTES_PER_TOKEN)


def event_size(event: ModelEvent) -> int:
    """Bytes that the model wrote in this event, as far as it shows them."""
    match event:
        case TextDelta(text) | ThinkingDelta(text):
            return _size(text)
        case ToolCallDelta():
            return BYTES_PER_TOKEN
    return 0


def answered(message: Assistant, input_tokens: int) -> LeaseReport:
    """Of a complete answer to a request of `input_tokens`: as the provider counted, or estimated."""
    return LeaseReport(
        "answered", usage=_counted(message.usage) or Usage(input_tokens, tokens(_message_size(message)))
    )


def failed(error: ModelError, input_tokens: int, written: int) -> LeaseReport:
    """Of an attempt that failed when the model had written so many bytes."""
    usage = _counted(error.usage)
    if usage is None and (written or error.kind not in UNTOUCHED):
        usage = Usage(input_tokens, tokens(written))
    return LeaseReport("failed", error.kind, error.status, error.retry_after_s, usage)


def _counted(usage: dict[str, int]) -> Usage | None:
    counts = {name: usage.get(name, 0) for name in money.COUNTED}
    sound = any(counts.values()) and all(0 <= count <= MOST_TOKENS for count in counts.values())
    return Usage(**counts) if sound else None


def _message_size(message: Message) -> int:
    match message:
        case Prompt(text=text):
            return _size(text)
        case Assistant(content=content) | ToolResult(content=content):
            return sum(_block_size(block) for block in content)


def _block_size(block: Text | Image | Thinking | ToolCall) -> int:
    match block:
        case Text(text):
            return _size(text)
        case Image():
            return IMAGE_TOKENS * BYTES_PER_TOKEN
        case Thinking():
            return _size(block.text) + len(block.signature) + len(block.redacted)
        case ToolCall():
            return len(msgspec.json.encode(block))


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
