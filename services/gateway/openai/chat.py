"""The answers of `/v1/chat/completions`. Pure.

data: {"object":"chat.completion.chunk","choices":[{"delta":{"content":"Hi"},...}],...}
data: [DONE]
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Literal

import msgspec

from beige.errors import BeigeError
from beige.messages.llm import PromptResult
from services.gateway.errors import HttpError
from services.gateway.openai.errors import encoded
from services.gateway.openai.wire import DONE, LIMITED, counts, sse

FinishReason = Literal["stop", "length", "content_filter"]


class Completion:
    """One completion. `system_fingerprint` names the model behind the agent, once it is known: also that it
    is a scripted one."""

    def __init__(self, model: str, *, include_usage: bool = False) -> None:
        self.id = "chatcmpl-" + secrets.token_hex(16)
        self._model, self._include_usage = model, include_usage
        self._created = int(time.time())

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def end(self, text: str, result: PromptResult) -> bytes:
        last = self._chunk({}, finish_reason(result), result.model)
        if self._include_usage:
            told = self._head("chat.completion.chunk", result.model)
            last += sse({**told, "choices": [], "usage": usage(result)})
        return last + DONE

    def error(self, error: BeigeError | HttpError) -> bytes:
        return b"data: " + encoded(error) + b"\n\n" + DONE

    def whole(self, result: PromptResult) -> bytes:
        message = {"role": "assistant", "content": result.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(result)}
        head = self._head("chat.completion", result.model)
        return msgspec.json.encode({**head, "choices": [choice], "usage": usage(result)})

    def _chunk(self, delta: dict[str, Any], finish: FinishReason | None = None, model: str = "") -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {**self._head("chat.completion.chunk", model), "choices": [choice]}
        return sse({**chunk, "usage": None} if self._include_usage else chunk)

    def _head(self, kind: str, model: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model,
                "system_fingerprint": model or None}  # fmt: skip


def finish_reason(result: PromptResult) -> FinishReason:
    if result.stop_reason in LIMITED:
        return "length"
    return "content_filter" if result.stop_reason == "refusal" else "stop"


def usage(result: PromptResult) -> dict[str, Any]:
    """Of the whole turn, over all its model calls."""
    given, read, written, output, reasoning = counts(result.usage)
    return {
        "prompt_tokens": given,
        "completion_tokens": output,
        "total_tokens": given + output,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
