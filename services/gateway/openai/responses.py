"""The answers of `/v1/responses`. Pure.

    event: response.output_text.delta
    data: {"type":"response.output_text.delta","sequence_number":4,"delta":"Hi",...}

All that is said in a turn is one message.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Literal

import msgspec

from beige.errors import BeigeError
from beige.messages.llm import PromptResult
from services.gateway.errors import HttpError
from services.gateway.openai.errors import body_of
from services.gateway.openai.requests import Asked
from services.gateway.openai.wire import LIMITED, counts, sse

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class Reply:
    def __init__(self, asked: Asked) -> None:
        self.id = "resp_" + secrets.token_hex(24)
        self._asked, self._message = asked, "msg_" + secrets.token_hex(24)
        self._created, self._number = int(time.time()), 0

    def begin(self) -> bytes:
        response = self._response("in_progress", [])
        return b"".join((
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
            self._event("response.output_item.added", output_index=0, item=self._item("in_progress", [])),
            self._part("response.content_part.added", part=_part("")),
        ))  # fmt: skip

    def text(self, text: str) -> bytes:
        return self._part("response.output_text.delta", delta=text, logprobs=[])

    def end(self, text: str, result: PromptResult) -> bytes:
        status = status_of(result)
        item = self._item(status, [_part(text)])
        kind = "response.completed" if status == "completed" else "response.incomplete"
        return b"".join((
            self._part("response.output_text.done", text=text, logprobs=[]),
            self._part("response.content_part.done", part=_part(text)),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(kind, response=self._response(status, [item], result)),
        ))  # fmt: skip

    def error(self, error: BeigeError | HttpError) -> bytes:
        told = body_of(error)
        failed = self._response("failed", [])
        failed["error"] = {"code": "server_error", "message": f"{told['code']}: {told['message']}"}
        return self._event("response.failed", response=failed)

    def whole(self, result: PromptResult) -> bytes:
        status = status_of(result)
        return msgspec.json.encode(self._response(status, [self._item(status, [_part(result.text)])], result))

    def _part(self, kind: str, **more: Any) -> bytes:
        return self._event(kind, item_id=self._message, output_index=0, content_index=0, **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse({"type": kind, "sequence_number": number, **more}, kind)

    def _item(self, status: Status, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "message", "id": self._message, "status": status, "role": "assistant",
                "content": content}  # fmt: skip

    def _response(
        self, status: Status, output: list[dict[str, Any]], result: PromptResult | None = None
    ) -> dict[str, Any]:
        asked = self._asked
        return {
            "id": self.id, "object": "response", "created_at": self._created, "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "model": asked.agent, "output": output, "error": None, "instructions": asked.instructions or None,
            "incomplete_details": {"reason": _reason(result)} if result and status == "incomplete" else None,
            "metadata": asked.metadata, "previous_response_id": asked.previous or None,
            "conversation": {"id": asked.conversation} if asked.conversation else None,
            "usage": usage(result) if result else None, "text": {"format": {"type": "text"}},
            "parallel_tool_calls": False, "tool_choice": "none", "tools": [], "temperature": None,
            "top_p": None, "background": False, "truncation": "disabled", "store": True,
        }  # fmt: skip


def status_of(result: PromptResult) -> Literal["completed", "incomplete"]:
    return "incomplete" if result.stop_reason in LIMITED or result.stop_reason == "refusal" else "completed"


def usage(result: PromptResult) -> dict[str, Any]:
    """Of the whole turn, over all its model calls."""
    given, read, written, output, reasoning = counts(result.usage)
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": given + output,
    }


def _reason(result: PromptResult) -> str:
    return "content_filter" if result.stop_reason == "refusal" else "max_output_tokens"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
