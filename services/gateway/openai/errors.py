"""Decides how an error is told to OpenAI's clients. Pure.

    {"error": {"message": "...", "type": "invalid_request_error", "param": "tools", "code": "..."}}

OpenAI's own SDKs ask again, by themselves, after 408, 409, 429 and 5xx. An agent's turn that may have
been done must not be done twice, so such an answer forbids it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from beige.errors import BeigeError
from services.gateway import errors
from services.gateway.errors import HttpError

PREFIX = "/v1/"
"""Paths below it speak this way."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Refused(HttpError):
    """400, or another 4xx: the request can't be honoured; `param` is the place in it."""

    def __init__(
        self, message: str, param: str | None, code: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(status, code, message)
        self.param = param


def body_of(error: BeigeError | HttpError) -> dict[str, Any]:
    status = errors.status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = error.param if isinstance(error, Refused) else None
    return {"message": error.message, "type": kind, "param": param, "code": error.code}


def encoded(error: BeigeError | HttpError) -> bytes:
    return msgspec.json.encode({"error": body_of(error)})


def headers_of(error: BeigeError | HttpError) -> dict[str, str]:
    headers = errors.headers_of(error)
    if error.executed == "maybe":
        headers = {**headers, "x-should-retry": "false"}
    return headers
