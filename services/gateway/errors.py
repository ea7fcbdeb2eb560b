"""Decides how an error is told over HTTP: a status, and one shape for all. Pure.

    {"error": {"code": "not_found", "message": "there is no agent 'x'", "executed": "no"}}

Codes are those of `beige.errors`; the ones below are HTTP's own.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from beige.errors import BeigeError, Executed

STATUS = {
    "malformed": 400,
    "config": 409,
    "denied": 403,
    "not_found": 404,
    "cancelled": 409,
    "too_large": 413,
    "failed": 422,
    "peer_lost": 502,
    "unavailable": 503,
    "overloaded": 503,
    "deadline_exceeded": 504,
}
"""`failed` is 422: what was asked for was tried and could not be done, and the gateway is well."""
RETRY_AFTER_S = "1"


class ErrorDetail(msgspec.Struct):
    code: str
    """Stable; the message is for people."""
    message: str
    executed: Executed
    """Whether it may have been done in spite of the error."""


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


class HttpError(Exception):
    """What only HTTP knows: the request is refused before anything is asked of the bus."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = dict(headers or {})
        self.executed: Executed = "no"


def unauthorized(message: str) -> HttpError:
    """One answer for every way in which a token is not good: it tells nothing about tokens."""
    return HttpError(401, "unauthorized", message, {"www-authenticate": 'Bearer realm="beige"'})


def forbidden(message: str) -> HttpError:
    return HttpError(403, "denied", message)


def gone(message: str) -> HttpError:
    return HttpError(410, "gone", message)


def left() -> HttpError:
    """For the log alone: nobody is there to read it."""
    return HttpError(499, "cancelled", "the client went away")


def internal() -> HttpError:
    """What is wrong stands in the gateway's log, not in its answer."""
    error = HttpError(500, "failed", "internal error in the gateway: see its log")
    error.executed = "maybe"
    return error


def status_of(error: BeigeError | HttpError) -> int:
    return error.status if isinstance(error, HttpError) else STATUS.get(error.code, 422)


def headers_of(error: BeigeError | HttpError) -> dict[str, str]:
    if isinstance(error, HttpError):
        return error.headers
    return {"retry-after": RETRY_AFTER_S} if status_of(error) == 503 else {}


def body_of(error: BeigeError | HttpError) -> ErrorBody:
    return ErrorBody(ErrorDetail(error.code, error.message, error.executed))


def encoded(error: BeigeError | HttpError) -> bytes:
    return msgspec.json.encode(body_of(error))
