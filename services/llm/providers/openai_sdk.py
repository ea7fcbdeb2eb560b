"""Touches the openai SDK: a client for one provider, its errors, its numbers. Shared by OpenAI's two APIs.

The SDK's own retries are off: whether to try again, and with which model, is not a provider's business.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import openai

from services.llm.conversation import Image, ToolResult
from services.llm.providers.base import all_input_usage
from services.llm.providers.bounds import client_options
from services.llm.providers.failures import ModelError, from_status, from_transport

DEFAULT_URL = "https://api.openai.com/v1"
CONNECT_TIMEOUT_S = 10.0


def open_client(
    api_key: str | None, base_url: str | None, headers: Mapping[str, str] | None, timeout_s: float
) -> openai.AsyncOpenAI:
    """Everything is given, so that no variable of the environment moves the URL."""
    return openai.AsyncOpenAI(
        api_key=api_key or "none",
        base_url=base_url or DEFAULT_URL,
        default_headers=dict(headers or {}),
        max_retries=0,
        timeout=openai.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
        http_client=openai.DefaultAsyncHttpxClient(**client_options()),
    )


def translate(error: Exception, began: bool) -> ModelError:
    """The SDK's errors, those of its HTTP library, and what malformed events raise in both."""
    if isinstance(error, ModelError):
        return error
    if isinstance(error, openai.APIStatusError):
        return from_status(error.status_code, error.body or str(error), error.response.headers)
    if transport := from_transport(error, began=began):
        return transport
    if isinstance(error, openai.APIError) and error.body:  # an error event inside the stream
        return from_status(None, error.body, {})
    return ModelError("bad_response", f"the provider sent something unreadable ({type(error).__name__})")


def counted(told: Any, asked: str, answered: str) -> dict[str, int]:
    """The SDK's numbers as `base.USAGE`; `asked` and `answered` are the API's words for input and output."""
    read, wrote = (getattr(told, f"{side}_tokens_details", None) for side in (asked, answered))
    return all_input_usage(
        total=getattr(told, f"{asked}_tokens", None),
        cached=getattr(read, "cached_tokens", None),
        written=getattr(read, "cache_write_tokens", None),
        output=getattr(told, f"{answered}_tokens", None),
        reasoning=getattr(wrote, "reasoning_tokens", None),
    )


def result_text(result: ToolResult) -> str:
    """Neither API has a field that says a call failed."""
    return ("error: " if result.is_error else "") + (result.text or "(empty)")


def data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"
