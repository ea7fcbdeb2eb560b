"""One judge of conversations: what may be sent to a model, by our own rules and by those of each API."""

from __future__ import annotations

from collections.abc import Sequence

from services.llm.conversation import Assistant, Message, Prompt, ToolResult
from services.llm.providers import anthropic_messages, openai_completions, openai_responses
from services.llm.providers.base import ModelRequest
from services.llm.tools import SPECS
from tests.simulator import anthropic_wire, openai_wire, responses_wire

LABELS = ("p/m", "other/m")
"""Of the model that spoke in most tests, and of another one: thoughts are only for the former."""


def problem(messages: Sequence[Message]) -> str:
    """Why it may not be sent; empty if it may."""
    return _own(messages) or _apis(messages)


def _own(messages: Sequence[Message]) -> str:
    if not messages or not isinstance(messages[0], Prompt):
        return "a conversation begins with a prompt"
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if isinstance(message, ToolResult):
            if message.tool_id not in waiting:
                return f"message {number} is the result of no call: {message.tool_id}"
            waiting.remove(message.tool_id)
        elif waiting:
            return f"message {number} comes before the results of {waiting}"
        if isinstance(message, Assistant):
            waiting = [call.id for call in message.tool_calls]
    if waiting:
        return f"calls without a result: {waiting}"
    return "" if isinstance(messages[-1], Prompt | ToolResult) else "the last word is not the model's"


def _apis(messages: Sequence[Message]) -> str:
    request = ModelRequest(model="m", system="s", messages=messages, tools=SPECS)
    for label in LABELS:
        if found := anthropic_wire.problem(anthropic_messages.encode_request(request, label)):
            return f"anthropic: {found}"
        if found := responses_wire.problem(openai_responses.encode_request(request, label)):
            return f"openai responses: {found}"
    found = openai_wire.problem(openai_completions.encode_request(request, own=False))
    return f"openai: {found}" if found else ""
