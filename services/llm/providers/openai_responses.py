"""Speaks OpenAI's Responses API through the official SDK, to OpenAI or any compatible server.

Nothing is kept on the server (`store` is false): each request carries the whole conversation, the model's
encrypted reasoning included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
from services.llm.providers.failures import from_status
from services.llm.providers.openai_sdk import counted, data_url, open_client, result_text, translate

_INCOMPLETE: dict[str, StopReason] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


class OpenAIResponses(SdkProvider):
    def __init__(self, name: str, *, api_key: str | None, base_url: str | None = None,
                 headers: Mapping[str, str] | None = None, timeout_s: float = 600.0) -> None:  # fmt: skip
        client = open_client(api_key, base_url, headers, timeout_s)
        secrets = [api_key or "", *(headers or {}).values()]
        super().__init__(name, client, client.responses.create, translate, secrets)

    def begin(self, request: ModelRequest, label: str) -> tuple[dict[str, Any], Assembler]:
        return encode_request(request, label), Assembler(label)


@dataclass
class _Item:
    """One item of the answer's output: a message, a reasoning or a function call."""

    type: str
    shown: list[str] = field(default_factory=list)
    """Of a message or a reasoning's summary: the pieces that were shown."""
    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    """In pieces."""
    id: str = ""
    encrypted: str = ""

    @property
    def text(self) -> str:
        return "".join(self.shown)

    def block(self) -> Block | None:
        match self.type:
            case "message":
                return Text(self.text) if self.text else None
            case "reasoning":
                signature = f"{self.id} {self.encrypted}" if self.encrypted else ""
                return Thinking(self.text, signature) if self.text or signature else None
            case "function_call":
                return tool_call(self.call_id, self.name, "".join(self.arguments))
        return None


class Assembler:
    """Puts the events of one stream together. Raises ModelError if they don't make an answer."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._items: list[_Item] = []
        self._by_index: dict[object, _Item] = {}
        self._refused = False
        self._stop: StopReason | None = None
        self.usage: dict[str, int] = {}
        self.began = False

    def feed(self, event: Any) -> Iterable[ModelEvent]:
        """`event` comes from the SDK, which doesn't check fields: a wrong one raises here."""
        kind = str(event.type)
        if kind == "error":
            raise from_status(None, {"code": event.code, "message": event.message}, {})
        self.began |= kind.startswith("response.")
        match kind.removeprefix("response."):
            case "output_item.added":
                return self._merge(self._begin(event, event.item.type), event.item)
            case "output_item.done":
                return self._merge(self._item(event, event.item.type), event.item)
            case "output_text.delta" | "refusal.delta":
                self._refused |= kind == "response.refusal.delta"
                return self._say(self._item(event, "message"), event.delta)
            case "reasoning_summary_text.delta" | "reasoning_text.delta":
                return self._say(self._item(event, "reasoning"), event.delta)
            case "reasoning_summary_part.added":
                item = self._item(event, "reasoning")
                return self._say(item, "\n\n") if item.shown else ()
            case "function_call_arguments.delta":
                item = self._item(event, "function_call")
                item.arguments.append(arguments(event.delta))
                return [ToolCallDelta(item.name)]
            case "completed" | "incomplete" | "failed":
                return self._end(event.response)
        return ()

    def done(self) -> MessageDone:
        stop = stopped(self.began, self._stop)
        content = [block for item in self._items if (block := item.block()) is not None]
        return MessageDone(Assistant(model=self._label, content=content, stop_reason=stop, usage=self.usage))

    def _begin(self, event: Any, kind: str) -> _Item:
        item = _Item(kind)
        self._items.append(item)
        self._by_index[getattr(event, "output_index", None)] = item
        return item

    def _item(self, event: Any, kind: str) -> _Item:
        """The item an event is about: by its place, which some servers don't tell, else by its id, which
        some change with each event, else the newest of its kind."""
        index = getattr(event, "output_index", None)
        item = self._by_index.get(index)
        if item is not None and item.type == kind:
            return item
        if item is None and index is not None:
            return self._begin(event, kind)
        of_kind = [item for item in reversed(self._items) if item.type == kind]
        item_id = getattr(event, "item_id", None) or getattr(getattr(event, "item", None), "id", None)
        same = [item for item in of_kind if item_id and item.id == item_id]
        return next(iter(same or of_kind), None) or self._begin(event, kind)

    def _say(self, item: _Item, text: object) -> Iterable[ModelEvent]:
        if not isinstance(text, str) or not text:
            return ()
        text = clean(text)
        item.shown.append(text)
        return [ThinkingDelta(text) if item.type == "reasoning" else TextDelta(text)]

    def _merge(self, item: _Item, told: Any) -> Iterable[ModelEvent]:
        """`told` is the item as it begins, or whole. Of a whole one, text that no delta brought is shown."""
        item.id = item.id or str(getattr(told, "id", None) or "")
        item.call_id = item.call_id or str(getattr(told, "call_id", None) or "")
        item.name = item.name or str(getattr(told, "name", None) or "")
        item.encrypted = str(getattr(told, "encrypted_content", None) or item.encrypted)
        if whole := arguments(getattr(told, "arguments", None)):
            item.arguments = [whole]
        parts = [*(getattr(told, "summary", None) or ()), *(getattr(told, "content", None) or ())]
        self._refused |= any(getattr(part, "refusal", None) for part in parts)
        separator = "\n\n" if item.type == "reasoning" else ""
        text, shown = separator.join(_text_of(part) for part in parts), item.text
        return self._say(item, text[len(shown) :]) if text.startswith(shown) else ()

    def _end(self, response: Any) -> Iterable[ModelEvent]:
        if told := getattr(response, "usage", None):
            self.usage = counted(told, "input", "output")
        status = getattr(response, "status", None) or "completed"
        events: list[ModelEvent] = []
        if not self._items:  # a server that tells the answer only at its end
            for told in getattr(response, "output", None) or ():
                self._items.append(_Item(str(told.type)))
                events += self._merge(self._items[-1], told)
        if status == "completed":
            calls = any(item.type == "function_call" for item in self._items)
            self._stop = "refusal" if self._refused else "tool_use" if calls else "end_turn"
        elif status == "incomplete":
            reason = getattr(getattr(response, "incomplete_details", None), "reason", None)
            self._stop = _INCOMPLETE.get(reason or "", "end_turn")
        else:
            raise from_status(None, _error(response), {})
        return events


def _text_of(part: Any) -> str:
    return clean(str(getattr(part, "text", None) or getattr(part, "refusal", None) or ""))


def _error(response: Any) -> dict[str, Any]:
    error = getattr(response, "error", None)
    fields = {name: getattr(error, name, None) for name in ("code", "type", "message")}
    return fields if any(fields.values()) else {"message": f"the answer ended as {response.status!r}"}


# --- what is sent -----------------------------------------------------------------------------------


def encode_request(request: ModelRequest, label: str) -> dict[str, Any]:
    """The request's parameters."""
    sent: dict[str, Any] = {
        "model": request.model,
        "instructions": request.system,
        "input": [item for message in request.messages for item in _encode(message, label)],
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema,
                "strict": False,
            }
            for tool in request.tools
        ],
        "store": False,
        "stream": True,
    }
    if request.max_tokens is not None:
        sent["max_output_tokens"] = request.max_tokens
    if request.thinking_level != "off":
        sent["reasoning"] = {"effort": request.thinking_level, "summary": "auto"}
        sent["include"] = ["reasoning.encrypted_content"]  # models that don't reason refuse to be asked
    return sent


def _encode(message: Message, label: str) -> Iterable[dict[str, Any]]:
    match message:
        case Prompt():
            yield {"role": "user", "content": message.text}
        case Assistant():
            yield from _assistant(message, message.model == label)
        case ToolResult():
            call_id = wire_id(message.tool_id)
            yield {"type": "function_call_output", "call_id": call_id, "output": _output(message)}


def _assistant(message: Assistant, own: bool) -> Iterable[dict[str, Any]]:
    """A thought is sent only in front of what it led to: the API refuses one without its following item."""
    thoughts: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, Thinking):
            thoughts += _thought(block) if own else ()
            continue
        if isinstance(block, Text) and not block.text:
            continue
        yield from thoughts
        thoughts = []
        yield {"role": "assistant", "content": block.text} if isinstance(block, Text) else _call(block)


def _thought(block: Thinking) -> Iterable[dict[str, Any]]:
    item_id, _, encrypted = block.signature.partition(" ")
    if not encrypted:  # another API's signature, or none
        return
    summary = [{"type": "summary_text", "text": block.text}] if block.text else []
    yield {"type": "reasoning", "id": item_id, "summary": summary, "encrypted_content": encrypted}


def _call(call: ToolCall) -> dict[str, Any]:
    args = json.dumps(call.args)
    return {"type": "function_call", "call_id": wire_id(call.id), "name": call.name, "arguments": args}


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    """Text alone, as every server knows it; a list only when there are images."""
    text = result_text(result)
    images = [block for block in result.content if isinstance(block, Image)]
    if not images:
        return text
    return [{"type": "input_text", "text": text}, *(_image(image) for image in images)]


def _image(image: Image) -> dict[str, Any]:
    return {"type": "input_image", "detail": "auto", "image_url": data_url(image)}
