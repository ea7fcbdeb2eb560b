"""Touches the openai SDK: a client for one provider, and its errors. Shared by OpenAI's two APIs.

The SDK's own retries are off: whether to try again, and with which model, is not a provider's business.
"""

from __future__ import annotations

from collections.abc import Mapping

import openai

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
