"""OpenAI's chat completions as the simulator speaks them, with the ways compatible servers bend them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.simulator.replies import Fault, Refusal, Reply, Say, Think, Tool, split


def events(answer: Reply, model: str) -> Iterator[bytes]:
    variant = answer.variant
    if "keep_alive" in variant:
        yield b": OPENROUTER PROCESSING\n\n"
    if "empty_choices" in variant:
        yield _chunk(model, [])
    first: dict[str, Any] = {"role": "assistant", "content": None if "null_content" in variant else ""}
    yield _choice(model, first)
    tools = [content for content in answer.content if isinstance(content, Tool)]
    for content in answer.content:
        if isinstance(content, Say):
            for piece in split(content.text, content.pieces):
                yield _choice(model, {"content": piece})
        elif isinstance(content, Think):
            for piece in split(content.text, 3):
                yield _choice(model, {"content": None, "reasoning_content": piece})
    for index, tool in enumerate(tools):
        for piece in _pieces(index, tool, variant):
            yield _choice(model, {"content": None, "tool_calls": [piece]} if "null_content" in variant
                          else {"tool_calls": [piece]})  # fmt: skip
    yield _choice(model, {}, answer.stop or ("tool_calls" if tools else "stop"))
    if answer.usage:
        yield _chunk(model, [], usage={
            "prompt_tokens": answer.all_input_tokens, "completion_tokens": answer.output_tokens,
            "total_tokens": answer.all_input_tokens + answer.output_tokens,
            "prompt_tokens_details": {
                "cached_tokens": answer.cache_read_tokens, "cache_write_tokens": answer.cache_write_tokens,
            },
            "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        })  # fmt: skip
    if "no_done" not in variant:
        yield b"data: [DONE]\n\n"


def _pieces(index: int, tool: Tool, variant: frozenset[str]) -> Iterator[dict[str, Any]]:
    place = {} if "no_index" in variant else {"index": 0 if "same_index" in variant else index}
    raw = json.dumps(tool.args) if tool.raw is None else tool.raw
    head = {**place, "id": tool.id, "type": "function"}
    if "object_args" in variant:
        yield {**head, "function": {"name": tool.name, "arguments": tool.args}}
    elif "whole_args" in variant:
        yield {**head, "function": {"name": tool.name, "arguments": raw}}
    else:
        yield {**head, "function": {"name": tool.name, "arguments": ""}}
        for piece in split(raw, tool.pieces):
            yield {**place, "function": {"arguments": piece}}


def malformed() -> bytes:
    return b'data: {"id": "chatcmpl-sim", "choices": [{"index": 0, "del\n\n'


def error_event(fault: Fault) -> bytes:
    error = {"message": fault.message, "type": fault.error_type, "param": None, "code": None}
    return f"data: {json.dumps({'error': error})}\n\n".encode()


def error_body(refusal: Refusal) -> str:
    error = {
        "message": refusal.message,
        "type": refusal.error_type,
        "param": None,
        "code": refusal.error_type,
    }
    return json.dumps({"error": error})


def _choice(model: str, delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _chunk(model, [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])


def _chunk(model: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
    chunk = {"id": "chatcmpl-sim", "object": "chat.completion.chunk", "created": 1780000000, "model": model,
             "choices": choices, **more}  # fmt: skip
    return f"data: {json.dumps(chunk)}\n\n".encode()


# --- what the API refuses -----------------------------------------------------------------------------


def problem(body: dict[str, Any]) -> str:
    """Why the API would answer 400; empty if it would not."""
    if not body.get("messages"):
        return "Missing required parameter: 'messages'."
    if body.get("tools") == []:
        return "[] is too short - 'tools'"
    open_ids: list[str] = []
    for index, message in enumerate(body["messages"]):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return f"messages.[{index}]: 'tool' must be a response to a preceding 'tool_calls' message"
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            return f"An assistant message with 'tool_calls' must be followed by tool messages: {open_ids}"
        if message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls"):
            return f"Invalid value for 'messages.[{index}].content': expected a string, got null."
        open_ids = [call["id"] for call in message.get("tool_calls", ())]
        for call in message.get("tool_calls", ()):
            json.loads(call["function"]["arguments"])
    return f"tool_call_ids did not have response messages: {open_ids}" if open_ids else ""
