"""Speaks the Anthropic Messages API through the official SDK, to Anthropic or any `baseUrl`.

The SDK's own retries are off: whether to try again, and with which model, is not this file's business.
"""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import anthropic

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
from services.llm.providers.base import (
    ModelRequest,
    ThinkingLevel,
    arguments,
    clean,
    tool_call,
    usage,
    wire_id,
)
from services.llm.providers.bounds import client_options
from services.llm.providers.failures import ModelError, from_status, from_transport

DEFAULT_URL = "https://api.anthropic.com"
CONNECT_TIMEOUT_S = 10.0
BUDGETS: dict[ThinkingLevel, int] = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
EFFORTS: dict[ThinkingLevel, str] = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_STOPS: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "pause_turn": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_full",
}
_KINDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}
_VERSION = re.compile(r"claude-(?:opus|sonnet|haiku)-(\d{1,2})(?:-(\d{1,2}))?(?!\d)")
_NEW_FAMILY = re.compile(r"claude-(?:fable|mythos)-")


class AnthropicMessages(SdkProvider):
    def __init__(self, name: str, *, api_key: str | None, base_url: str | None = None,
                 headers: Mapping[str, str] | None = None, timeout_s: float = 600.0) -> None:  # fmt: skip
        # Everything is given, so that no variable of the environment adds a header or moves the URL.
        client = anthropic.AsyncAnthropic(
            api_key=api_key or "none",
            base_url=re.sub(r"/v1/?$", "", base_url or DEFAULT_URL),
            default_headers={"x-api-key": api_key or "none", **(headers or {})},
            max_retries=0,
            timeout=anthropic.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            http_client=anthropic.DefaultAsyncHttpxClient(**client_options()),
        )
        secrets = [api_key or "", *(headers or {}).values()]
        super().__init__(name, client, client.messages.create, translate, secrets)

    def begin(self, request: ModelRequest, label: str) -> tuple[dict[str, Any], Assembler]:
        return encode_request(request, label), Assembler(label)


def translate(error: Exception, began: bool) -> ModelError:
    """The SDK's errors, those of its HTTP library, and what malformed events raise in both."""
    if isinstance(error, ModelError):
        return error
    if isinstance(error, anthropic.APIStatusError):
        return from_status(error.status_code, error.body or str(error), error.response.headers)
    if transport := from_transport(error, began=began):
        return transport
    return ModelError("bad_response", f"the provider sent something unreadable ({type(error).__name__})")


class Assembler:
    """Puts the events of one stream together. Raises ModelError if they don't make a message."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._blocks: dict[int, _Block] = {}
        self.usage: dict[str, int] = {}
        self._stop: StopReason | None = None
        self.began = False

    def feed(self, event: Any) -> Iterable[ModelEvent]:
        """`event` comes from the SDK, which doesn't check fields: a wrong one raises here."""
        self.began = True
        match event.type:
            case "message_start":
                self._count(getattr(event.message, "usage", None))
            case "content_block_start":
                block = self._blocks[event.index] = _opened(event.content_block)
                return self._text(block, "text", getattr(event.content_block, "text", ""))
            case "content_block_delta":
                return self._delta(self._block(event), event.delta)
            case "message_delta":
                if stop := getattr(event.delta, "stop_reason", None):
                    self._stop = _STOPS.get(stop, "end_turn")
                self._count(getattr(event, "usage", None))
            case "message_stop":
                self._stop = self._stop or "end_turn"
        return ()

    def done(self) -> MessageDone:
        stop = stopped(self.began, self._stop)
        blocks = [_closed(self._blocks[index]) for index in sorted(self._blocks)]
        content = [block for block in blocks if block is not None]
        calls = any(isinstance(block, ToolCall) for block in content)
        stop = "tool_use" if calls and stop == "end_turn" else stop  # as some servers say it
        return MessageDone(Assistant(model=self._label, content=content, stop_reason=stop, usage=self.usage))

    def _block(self, event: Any) -> _Block:
        """The block a delta belongs to; begun by the delta where a server left out its start."""
        kind = _KINDS.get(event.delta.type, "")
        return self._blocks.setdefault(event.index, _Block(type=[kind]))

    def _delta(self, block: _Block, delta: Any) -> Iterable[ModelEvent]:
        match delta.type:
            case "text_delta":
                return self._text(block, "text", delta.text)
            case "thinking_delta":
                return self._text(block, "thinking", delta.thinking)
            case "signature_delta":
                block["signature"].append(delta.signature)
            case "input_json_delta":
                block["json"].append(arguments(delta.partial_json))
                return [ToolCallDelta("".join(block["name"]))]
        return ()

    def _text(self, block: _Block, field: str, text: object) -> Iterable[ModelEvent]:
        if not isinstance(text, str) or not text:
            return ()
        text = clean(text)
        block[field].append(text)
        return [ThinkingDelta(text) if field == "thinking" else TextDelta(text)]

    def _count(self, counted: Any) -> None:
        """Numbers in later events are cumulative: they replace earlier ones."""
        details = getattr(counted, "output_tokens_details", None)
        self.usage |= usage(
            input_tokens=getattr(counted, "input_tokens", None),
            output_tokens=getattr(counted, "output_tokens", None),
            cache_read_tokens=getattr(counted, "cache_read_input_tokens", None),
            cache_write_tokens=getattr(counted, "cache_creation_input_tokens", None),
            reasoning_tokens=getattr(details, "thinking_tokens", None),
        )


class _Block(defaultdict[str, list[str]]):
    """A content block under way: each field in pieces."""

    def __init__(self, **fields: list[str]) -> None:
        super().__init__(list, fields)


def _opened(block: Any) -> _Block:
    opened = _Block(type=[str(block.type)])
    for field in ("id", "name", "data", "thinking", "signature"):
        if value := getattr(block, field, None):
            opened[field] = [str(value)]
    if whole := getattr(block, "input", None):  # some servers send the arguments whole, at the start
        opened["json"] = [arguments(whole)]
    return opened


def _closed(block: _Block) -> Block | None:
    parts = {field: "".join(pieces) for field, pieces in block.items()}
    match parts["type"]:
        case "text":
            return Text(parts["text"]) if parts.get("text") else None
        case "thinking":
            return Thinking(parts.get("thinking", ""), parts.get("signature", ""))
        case "redacted_thinking":
            return Thinking(redacted=parts.get("data", ""))
        case "tool_use":
            return tool_call(parts.get("id", ""), parts.get("name", ""), parts.get("json", ""))
    return None


# --- what is sent -----------------------------------------------------------------------------------

_CACHED = {"cache_control": {"type": "ephemeral"}}


def encode_request(request: ModelRequest, label: str) -> dict[str, Any]:
    """The request's parameters."""
    messages = _merged(_encode(message, label) for message in request.messages)
    tools: list[dict[str, Any]] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
        for tool in request.tools
    ]
    _mark(tools, messages)
    sent: dict[str, Any] = {
        "model": request.model,
        "system": [{"type": "text", "text": request.system, **_CACHED}],
        "messages": messages,
        "tools": tools,
        "max_tokens": request.max_tokens or _longest_answer(request.model),
        "stream": True,
    }
    sent.update(_thinking(request, sent["max_tokens"]))
    return sent


def _mark(tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    """Where the prompt cache may end: the tools, the system prompt (marked where it is built), and the last
    two messages of the user's side; the API takes four marks. The last but one finds what the call before
    wrote, however many results the last one holds: the API looks only 20 blocks back from a mark."""
    if tools:
        tools[-1].update(_CACHED)
    users = [message for message in messages if message["role"] == "user"]
    for message in users[-2:]:
        message["content"][-1].update(_CACHED)


def _thinking(request: ModelRequest, max_tokens: int) -> dict[str, Any]:
    """Newer models choose how much they think and take an effort; older ones take a budget of tokens,
    which must leave room for the answer."""
    if request.thinking_level == "off":
        return {}
    if thinks_adaptively(request.model):
        effort = EFFORTS[request.thinking_level]
        return _extra({"type": "adaptive", "display": "summarized"}, output_config={"effort": effort})
    budget = BUDGETS[request.thinking_level]
    if request.max_tokens is None:
        return _extra({"type": "enabled", "budget_tokens": budget}) | {"max_tokens": max_tokens + budget}
    budget = min(budget, max_tokens // 2)
    return _extra({"type": "enabled", "budget_tokens": budget}) if budget >= 1024 else {}


def _extra(thinking: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Sent beside what the SDK knows, so that older versions of it do as well."""
    return {"extra_body": {"thinking": thinking, **more}}


def thinks_adaptively(model: str) -> bool:
    """True from Claude 4.6 on, where a budget is deprecated and soon refused (Anthropic's documentation
    of adaptive thinking). Unknown names on compatible servers take the older form."""
    if _NEW_FAMILY.search(model):
        return True
    found = _VERSION.search(model)
    return bool(found) and (int(found[1]), int(found[2] or 0)) >= (4, 6)  # type: ignore[index]


def _longest_answer(model: str) -> int:
    """The API demands a number; these are below every model's limit."""
    if re.search(r"claude-3-(opus|sonnet|haiku)", model):
        return 4096
    return 8192 if "claude-3-5" in model else 16384


def _encode(message: Message, label: str) -> dict[str, Any]:
    match message:
        case Prompt():
            return {"role": "user", "content": [_text(message.text)]}
        case Assistant():
            own = message.model == label
            blocks = [_block(block, own) for block in message.content]
            return {"role": "assistant", "content": [block for block in blocks if block]}
        case ToolResult():
            return {"role": "user", "content": [_result(message)]}


def _merged(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One message per side in turn: all results of one answer must be in one message. Empty ones,
    which the API refuses, are left out."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if not message["content"]:
            continue
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += message["content"]
        else:
            merged.append(message)
    return merged


def _block(block: Block, own: bool) -> dict[str, Any] | None:
    match block:
        case Text(text):
            return _text(text) if text.strip() else None
        case ToolCall():
            return {"type": "tool_use", "id": wire_id(block.id), "name": block.name, "input": block.args}
        case Thinking():
            return _thought(block) if own else None


def _thought(block: Thinking) -> dict[str, Any] | None:
    """Thoughts go back only as they came: the API checks their signature."""
    if block.redacted:
        return {"type": "redacted_thinking", "data": block.redacted}
    if block.signature and " " not in block.signature:  # with one it is of OpenAI's Responses API
        return {"type": "thinking", "thinking": block.text, "signature": block.signature}
    return None


def _result(result: ToolResult) -> dict[str, Any]:
    content = [_image(block) if isinstance(block, Image) else _text(block.text) for block in result.content]
    return {
        "type": "tool_result",
        "tool_use_id": wire_id(result.tool_id),
        "content": content,
        "is_error": result.is_error,
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text if text.strip() else "(empty)"}


def _image(image: Image) -> dict[str, Any]:
    data = base64.b64encode(image.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": data}}
