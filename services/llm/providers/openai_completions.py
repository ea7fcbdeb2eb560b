"""Speaks the OpenAI chat completions API through the official SDK, to OpenAI or any compatible server.

Compatible servers bend the format: usage may be missing, tool arguments come in pieces, whole, or as
an object, choices may be empty, content null. What can be understood is understood.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.llm.conversation import (
    Assistant,
    Block,
    Image,
    Message,
    Prompt,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from services.llm.events import MessageDone, ModelEvent, TextDelta, ThinkingDelta, ToolCallDelta
from services.llm.providers.answering import SdkProvider, stopped
from services.llm.providers.base import ModelRequest, arguments, clean, tool_call, wire_id
from services.llm.providers.failures import ModelError, from_status
from services.llm.providers.openai_sdk import counted, data_url, open_client, result_text, translate

_STOPS: dict[str, StopReason] = {
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "content_filter": "refusal",
    "sensitive": "refusal",
    "model_context_window_exceeded": "context_full",
}
"""Others mean that the model was done: with an answer, or with its tool calls."""
_BROKEN = frozenset({"error", "abort", "network_error", "insufficient_system_resource"})
"""How some servers end an answer that they could not finish."""


class OpenAICompletions(SdkProvider):
    def __init__(self, name: str, *, api_key: str | None, base_url: str | None = None,
                 headers: Mapping[str, str] | None = None, timeout_s: float = 600.0) -> None:  # fmt: skip
        self._own = base_url is None
        client = open_client(api_key, base_url, headers, timeout_s)
        secrets = [api_key or "", *(headers or {}).values()]
        super().__init__(name, client, client.chat.completions.create, translate, secrets)

    def begin(self, request: ModelRequest, label: str) -> tuple[dict[str, Any], Assembler]:
        return encode_request(request, self._own), Assembler(label)


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    """In pieces."""


class Assembler:
    """Puts the chunks of one stream together. Raises ModelError if they don't make a message."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self.usage: dict[str, int] = {}
        self._stop: StopReason | None = None
        self.began = self._ended = False

    def feed(self, chunk: Any) -> list[ModelEvent]:
        """`chunk` comes from the SDK, which doesn't check fields: a wrong one raises here."""
        choices = getattr(chunk, "choices", None)
        self._count(getattr(chunk, "usage", None))
        if getattr(chunk, "object", None) == "error":
            raise from_status(None, chunk.model_dump(), {})
        if not choices:
            self._ended |= self.began and bool(self.usage)  # numbers alone are the last chunk
            return []
        self.began = True
        if stop := getattr(choices[0], "finish_reason", None):
            self._end(stop)
        delta = getattr(choices[0], "delta", None)
        return self._delta(delta) if delta else []

    def done(self) -> MessageDone:
        said = self._stop or ("tool_use" if self._calls else "end_turn")
        stop = stopped(self.began, said if self._ended else None)
        text, thinking = "".join(self._text), "".join(self._thinking)
        content: list[Block] = [Thinking(thinking)] if thinking else []
        if text:
            content.append(Text(text))
        content += [tool_call(call.id, call.name, "".join(call.arguments)) for call in self._calls]
        return MessageDone(Assistant(model=self._label, content=content, stop_reason=stop, usage=self.usage))

    def _end(self, reason: str) -> None:
        if reason.lower() in _BROKEN:
            raise ModelError("stream_cut", f"the provider could not finish the answer ({reason[:50]})")
        self._ended, self._stop = True, _STOPS.get(reason.lower())

    def _delta(self, delta: Any) -> list[ModelEvent]:
        content = getattr(delta, "content", None)
        # Asking the SDK's object for a field it has not costs as much as all the rest.
        extra = getattr(delta, "model_extra", None) or {}
        thoughts = [
            *_texts(extra.get("reasoning_content") or extra.get("reasoning")),
            *_texts(content, "thinking"),
        ]
        texts = [*_texts(content), *_texts(getattr(delta, "refusal", None))]
        self._thinking += thoughts
        self._text += texts
        events: list[ModelEvent] = [ThinkingDelta(text) for text in thoughts]
        events += [TextDelta(text) for text in texts]
        return events + [self._call_delta(piece) for piece in getattr(delta, "tool_calls", None) or ()]

    def _call_delta(self, piece: Any) -> ModelEvent:
        call = self._find(getattr(piece, "index", None), getattr(piece, "id", None))
        function = getattr(piece, "function", None)
        if function is not None:
            call.name = call.name or getattr(function, "name", None) or ""
            call.arguments.append(arguments(getattr(function, "arguments", None)))
        return ToolCallDelta(call.name)

    def _find(self, index: int | None, tool_id: str | None) -> _Call:
        """The call a piece belongs to. Some servers send every call with index 0, or with none: a new
        id then begins a new call."""
        if index is None:
            index = len(self._calls) if tool_id else max(len(self._calls) - 1, 0)
        call = self._by_index.get(index)
        if call is None or (tool_id and call.id and tool_id != call.id):
            call = self._by_index[index] = _Call()
            self._calls.append(call)
        call.id = call.id or tool_id or ""
        return call

    def _count(self, usage: Any) -> None:
        """Numbers come with the last chunk, or (some servers) so far with each."""
        if usage is not None:
            self.usage = counted(usage, "prompt", "completion")


def _texts(content: object, kind: str = "text") -> list[str]:
    """Text as it is, or as a list of parts, of which those of `kind` count."""
    if isinstance(content, str):
        return [clean(content)] if content and kind == "text" else []
    found = (
        [part.get(kind) for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    )
    return [text for part in found for text in _texts(part)]


# --- what is sent -----------------------------------------------------------------------------------


def encode_request(request: ModelRequest, own: bool) -> dict[str, Any]:
    """The request's parameters. `own`: OpenAI's server, whose newer models refuse `max_tokens`;
    compatible servers know nothing else."""
    sent: dict[str, Any] = {
        "model": request.model,
        "messages": [{"role": "system", "content": request.system}, *_encode_all(request.messages)],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:  # an empty list is refused
        sent["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
            }
            for tool in request.tools
        ]
    if request.max_tokens is not None:
        sent["max_completion_tokens" if own else "max_tokens"] = request.max_tokens
    if request.thinking_level != "off":
        sent["extra_body"] = {"reasoning_effort": request.thinking_level}  # older SDKs don't know it
    return sent


def _encode_all(messages: Sequence[Message]) -> Iterable[dict[str, Any]]:
    """Images follow in a user message after the last result, as tool messages can't hold them."""
    images: list[dict[str, Any]] = []
    for message in messages:
        if images and not isinstance(message, ToolResult):
            yield {"role": "user", "content": images}
            images = []
        match message:
            case Prompt():
                yield {"role": "user", "content": message.text}
            case Assistant():
                yield from _assistant(message)
            case ToolResult():
                told = {"tool_call_id": wire_id(message.tool_id), "content": result_text(message)}
                yield {"role": "tool", **told}
                images += _images(message)
    if images:
        yield {"role": "user", "content": images}


def _assistant(message: Assistant) -> Iterable[dict[str, Any]]:
    calls = [_call(call) for call in message.tool_calls]
    if calls:
        yield {"role": "assistant", "content": message.text or None, "tool_calls": calls}
    elif message.text:
        yield {"role": "assistant", "content": message.text}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.args)}
    return {"id": wire_id(call.id), "type": "function", "function": function}


def _images(result: ToolResult) -> list[dict[str, Any]]:
    shown = [block for block in result.content if isinstance(block, Image)]
    if not shown:
        return []
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": f"The image that {result.tool} (call {result.tool_id}) returned:"}
    ]
    for image in shown:
        parts.append({"type": "image_url", "image_url": {"url": data_url(image)}})
    return parts
