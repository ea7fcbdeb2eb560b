"""OpenAI's Responses API as the simulator speaks it: typed stream events, failed answers, request checks.

Sources: the API reference's page on streaming events; wording of the checks as the API's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.simulator.openai_wire import error_body
from tests.simulator.replies import Fault, Reply, Say, Think, Tool, split

__all__ = ["error_body", "error_event", "events", "malformed", "problem"]


def events(answer: Reply, model: str) -> Iterator[bytes]:
    """Variants: `bare` (no in_progress, part and done events, as small servers do), `only_end` (nothing but
    the completed response), `no_place` (neither output_index nor item_id), `other_ids` (a new item_id in each
    event), `object_args`, `keep_alive`, `done` (a final [DONE], which the API doesn't send)."""
    for number, (kind, fields) in enumerate(_events(answer, model)):
        if "keep_alive" in answer.variant and number == 1:
            yield b": keep-alive\n\n"
        if _left_out(kind, answer.variant):
            continue
        if "no_place" in answer.variant:
            fields = {
                name: value for name, value in fields.items() if name not in ("output_index", "item_id")
            }
        if "other_ids" in answer.variant and "item_id" in fields:
            fields["item_id"] = f"other_{number}"
        yield _sse(kind, sequence_number=number, **fields)
    if "done" in answer.variant:
        yield b"data: [DONE]\n\n"


def _left_out(kind: str, variant: frozenset[str]) -> bool:
    if "only_end" in variant:
        return kind not in ("response.completed", "response.incomplete", "response.failed")
    return "bare" in variant and (kind.endswith((".in_progress", ".done")) or "part" in kind)


def _events(answer: Reply, model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    response = {"id": "resp_sim", "object": "response", "created_at": 1780000000, "model": model,
                "status": "in_progress", "output": [], "error": None, "incomplete_details": None,
                "usage": None}  # fmt: skip
    yield "response.created", {"response": response}
    yield "response.in_progress", {"response": response}
    output = [_whole(index, content, answer.variant) for index, content in enumerate(answer.content)]
    for index, content in enumerate(answer.content):
        yield from _item(index, content, output[index])
    yield _end(answer, response | {"output": output})


def _end(answer: Reply, response: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """`stop`: `max_output_tokens` or `content_filter` (incomplete), or an error code (failed)."""
    counted = {
        "input_tokens": answer.all_input_tokens,
        "input_tokens_details": {
            "cached_tokens": answer.cache_read_tokens,
            "cache_write_tokens": answer.cache_write_tokens,
        },
        "output_tokens": answer.output_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": answer.all_input_tokens + answer.output_tokens,
    }
    response["usage"] = counted if answer.usage else None
    match answer.stop:
        case None | "refusal":
            return "response.completed", {"response": response | {"status": "completed"}}
        case "max_output_tokens" | "content_filter":
            details = {"reason": answer.stop}
            response = response | {"status": "incomplete", "incomplete_details": details}
            return "response.incomplete", {"response": response}
        case code:
            error = {"code": code, "message": "The answer could not be finished."}
            return "response.failed", {"response": response | {"status": "failed", "error": error}}


def _whole(index: int, content: Say | Think | Tool, variant: frozenset[str]) -> dict[str, Any]:
    match content:
        case Say(text):
            part = {"type": "output_text", "text": text, "annotations": []}
            if content.refusal:
                part = {"type": "refusal", "refusal": text}
            return {"id": f"msg_{index}", "type": "message", "role": "assistant", "status": "completed",
                    "content": [part]}  # fmt: skip
        case Think(text, signature):
            return {"id": f"rs_{index}", "type": "reasoning", "status": "completed",
                    "summary": [{"type": "summary_text", "text": part} for part in text.split("\n\n")],
                    "encrypted_content": signature}  # fmt: skip
        case Tool():
            raw = json.dumps(content.args) if content.raw is None else content.raw
            return {"id": f"fc_{index}", "type": "function_call", "status": "completed",
                    "call_id": content.id, "name": content.name,
                    "arguments": content.args if "object_args" in variant else raw}  # fmt: skip


def _item(
    index: int, content: Say | Think | Tool, whole: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    place = {"output_index": index, "item_id": whole["id"]}
    empty = {"content": [], "summary": [], "arguments": "", "encrypted_content": "", "status": "in_progress"}
    begun = whole | {name: value for name, value in empty.items() if name in whole}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    match content:
        case Say(text, pieces):
            yield from _parts(place, "content_part", whole["content"][0])
            kind = "refusal" if content.refusal else "output_text"
            for piece in split(text, pieces):
                yield f"response.{kind}.delta", {**place, "content_index": 0, "delta": piece}
        case Think():
            for number, part in enumerate(whole["summary"]):
                at = {**place, "summary_index": number}
                yield "response.reasoning_summary_part.added", {**at, "part": part | {"text": ""}}
                for piece in split(part["text"], 3):
                    yield "response.reasoning_summary_text.delta", {**at, "delta": piece}
                yield "response.reasoning_summary_text.done", {**at, "text": part["text"]}
                yield "response.reasoning_summary_part.done", {**at, "part": part}
        case Tool():
            arguments = whole["arguments"]
            pieces = split(arguments, content.pieces) if isinstance(arguments, str) else [arguments]
            for piece in pieces:
                yield "response.function_call_arguments.delta", {**place, "delta": piece}
            yield "response.function_call_arguments.done", {**place, "arguments": arguments}
    yield "response.output_item.done", {"output_index": index, "item": whole}


def _parts(place: dict[str, Any], kind: str, whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    empty = {name: "" if name in ("text", "refusal") else value for name, value in whole.items()}
    yield f"response.{kind}.added", {**place, "content_index": 0, "part": empty}


def malformed() -> bytes:
    return b'event: response.output_text.delta\ndata: {"type": "response.output_text.delta", "del\n\n'


def error_event(fault: Fault) -> bytes:
    return _sse("error", code=fault.error_type, message=fault.message, param=None, sequence_number=9)


def _sse(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


# --- what the API refuses -----------------------------------------------------------------------------


def problem(body: dict[str, Any]) -> str:
    """Why the API would answer 400; empty if it would not."""
    if not body.get("input"):
        return "Missing required parameter: 'input'."
    open_ids: list[str] = []
    thought = ""
    for index, item in enumerate([*body["input"], {"type": "end"}]):
        kind = item.get("type", "message")
        follows = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        if thought and not follows:
            return f"Item '{thought}' of type 'reasoning' was provided without its required following item."
        thought = item["id"] if kind == "reasoning" else ""
        if found := _calls_problem(kind, item, open_ids) or _item_problem(kind, item, index):
            return found
    return ""


def _calls_problem(kind: str, item: dict[str, Any], open_ids: list[str]) -> str:
    """Each call must have one result before anything else is said. `open_ids` is kept up to date."""
    if kind == "function_call":
        if item["call_id"] in open_ids:
            return f"Duplicate item found with call_id {item['call_id']}"
        open_ids.append(item["call_id"])
    elif kind == "function_call_output":
        if item["call_id"] not in open_ids:
            return f"No tool call found for function call output with call_id {item['call_id']}."
        open_ids.remove(item["call_id"])
    elif open_ids and (kind == "end" or item.get("role") == "user"):
        return f"No tool output found for function call {open_ids[0]}."
    return ""


def _item_problem(kind: str, item: dict[str, Any], index: int) -> str:
    if kind == "function_call":
        json.loads(item["arguments"])
    elif kind == "message" and not item["content"]:
        return f"Invalid value for 'input[{index}].content': must not be empty."
    elif kind == "reasoning" and not item.get("encrypted_content"):
        return f"Item with id '{item['id']}' not found: items are not persisted when `store` is false."
    elif kind not in ("function_call_output", "message", "reasoning", "end"):
        return f"Invalid value for 'input[{index}].type': '{kind}'."
    return ""
