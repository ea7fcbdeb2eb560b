"""Anthropic's Messages API as the simulator speaks it: stream events, error bodies, request checks.

Sources: the API reference's streaming page and its errors page; wording of the checks as the API's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.simulator.replies import Fault, Refusal, Reply, Say, Think, Tool, split


def events(answer: Reply, model: str) -> Iterator[bytes]:
    begun = {
        "input_tokens": answer.input_tokens,
        "cache_creation_input_tokens": answer.cache_write_tokens,
        "cache_read_input_tokens": answer.cache_read_tokens,
        "output_tokens": 1,
    }
    done = {
        "output_tokens": answer.output_tokens,
        "output_tokens_details": {"thinking_tokens": answer.reasoning_tokens},
    }
    yield _sse("message_start", message={
        "id": "msg_sim", "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": None, "stop_sequence": None, **({"usage": begun} if answer.usage else {}),
    })  # fmt: skip
    for index, content in enumerate(answer.content):
        yield from _block(index, content)
    tools = any(isinstance(content, Tool) for content in answer.content)
    stop = answer.stop or ("tool_use" if tools else "end_turn")
    counted = {"usage": done} if answer.usage else {}
    yield _sse("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, **counted)
    yield _sse("message_stop")


def _block(index: int, content: Say | Think | Tool) -> Iterator[bytes]:
    match content:
        case Say(text, pieces):
            opened: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in split(text, pieces)]
        case Think(text, signature):
            opened = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in split(text, 3)]
            deltas.append({"type": "signature_delta", "signature": signature})
        case Tool():
            opened = {"type": "tool_use", "id": content.id, "name": content.name, "input": {}}
            raw = json.dumps(content.args) if content.raw is None else content.raw
            deltas = [
                {"type": "input_json_delta", "partial_json": p} for p in ["", *split(raw, content.pieces)]
            ]
    yield _sse("content_block_start", index=index, content_block=opened)
    if index == 0:
        yield _sse("ping")
    for delta in deltas:
        yield _sse("content_block_delta", index=index, delta=delta)
    yield _sse("content_block_stop", index=index)


def malformed() -> bytes:
    return b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "delta": {"ty\n\n'


def error_event(fault: Fault) -> bytes:
    return _sse("error", error={"type": fault.error_type, "message": fault.message})


def error_body(refusal: Refusal) -> str:
    error = {"type": refusal.error_type, "message": refusal.message}
    return json.dumps({"type": "error", "error": error, "request_id": "req_sim"})


def _sse(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


# --- what the API refuses -----------------------------------------------------------------------------


def problem(body: dict[str, Any]) -> str:
    """Why the API would answer 400; empty if it would not."""
    for field in ("model", "max_tokens", "messages"):
        if field not in body:
            return f"{field}: Field required"
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled" and not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
        return "`max_tokens` must be greater than `thinking.budget_tokens`"
    if (marks := json.dumps(body).count('"cache_control"')) > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
    ids = re.findall(r'"type": "tool_use", "id": "([^"]*)"', json.dumps(body["messages"]))
    if len(ids) != len(set(ids)):
        return "messages: `tool_use` ids must be unique"
    messages = body["messages"]
    if not messages or messages[0]["role"] != "user":
        return 'messages: first message must use the "user" role'
    for index, message in enumerate(messages):
        if found := _message_problem(index, message, messages[index - 1] if index else None):
            return found
    return "" if messages[-1]["role"] == "user" else "messages: the conversation must end with a user message"


def _message_problem(index: int, message: dict[str, Any], before: dict[str, Any] | None) -> str:
    content = message["content"]
    if not content:
        return f"messages.{index}: all messages must have non-empty content"
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        if block["type"] == "text" and not block["text"].strip():
            return f"messages.{index}: text content blocks must contain non-whitespace text"
        if block["type"] == "tool_use" and not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
            return f"messages.{index}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        if block["type"] == "thinking" and not block["signature"]:
            return f"messages.{index}.thinking.signature: Field required"
    results = [block["type"] == "tool_result" for block in blocks]
    if results != sorted(results, reverse=True):
        return f"messages.{index}: `tool_result` blocks must come before other content"
    asked = _dangling(before) if before else set()
    given = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if message["role"] == "user" and asked != set(given):
        missing = sorted(asked - set(given))
        if missing:
            return f"messages.{index}: `tool_use` ids were found without `tool_result` blocks: {missing}"
        return f"messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {given}"
    return (
        f"messages.{index}: each tool_use must have a single result" if len(given) != len(set(given)) else ""
    )


def _dangling(message: dict[str, Any]) -> set[str]:
    if message["role"] != "assistant" or isinstance(message["content"], str):
        return set()
    return {block["id"] for block in message["content"] if block["type"] == "tool_use"}
