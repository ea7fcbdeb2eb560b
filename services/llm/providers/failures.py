"""What can go wrong with a model, in a small typed set: every provider's errors are translated here.

`kind` says what the caller can do; the message is for people and never holds a key.
"""

from __future__ import annotations

import contextlib
import math
import re
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from beige.errors import Failed
from beige.unseen import text_of

Kind = Literal[
    "rate_limited",  # a limit of this key: wait `retry_after_s`, or ask another model
    "overloaded",  # the provider has no capacity now: ask again
    "auth",  # the key is wrong or may not: no retry cures it
    "billing",  # no credit left
    "bad_request",  # the provider refuses what we sent
    "context_too_long",  # the conversation does not fit
    "connection",  # no connection, or none in time
    "timeout",  # connected, but silent too long
    "stream_cut",  # the answer began and broke off
    "bad_response",  # not what the API promises
    "not_leased",  # policy did not let us call it
    "over_budget",  # policy: the budget has no room for it
    "exhausted",  # every model was tried
]

_CONTEXT = re.compile(
    r"prompt is too long|input is too long|too many tokens|request_too_large|"
    r"context[ _](?:length|window|size|limit)|"
    r"maximum (?:context|prompt length|model length)|"
    r"exceeds? (?:the )?(?:available|max\w*) (?:context|length|number of tokens)|"
    r"model token limit|token count of \d+ exceeds|range of input length|"
    r"tokens \+ `?max_new_tokens`? must be",
    re.IGNORECASE,
)
"""Each vendor's words for it, captured in `tests/unit/llm/providers/test_failures.py`."""
_RATE = re.compile(r"rate.?limit|too many requests|quota", re.IGNORECASE)
_OVERLOADED = re.compile(r"overloaded|capacity|temporarily unavailable|try again later", re.IGNORECASE)
_BILLING = re.compile(r"credit balance|insufficient_quota|payment required|billing_error", re.IGNORECASE)
_AUTH = re.compile(r"authentication_error|permission_error|invalid_api_key", re.IGNORECASE)
_IN_STREAM: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"timeout_error"), "timeout"),
    (re.compile(r"server_error|api_error|internal_error"), "overloaded"),
    (re.compile(r"invalid_|not_found|policy_violation|_image|image_"), "bad_request"),
)
"""What an error's type says where there is no status: the answer had begun with 200."""
_MESSAGE_LIMIT = 500
_KEY_PIECE = 8


class ModelError(Failed):
    """A model call failed. `retry_after_s` is the provider's word, None if it gave none."""

    def __init__(self, kind: Kind, message: str, *, status: int | None = None,
                 retry_after_s: float | None = None) -> None:  # fmt: skip
        super().__init__(text_of(message))
        self.kind, self.status, self.retry_after_s = kind, status, retry_after_s
        self.too_long = kind == "context_too_long"
        """A shorter conversation could help: also where one of several models that were tried said so."""
        self.usage: dict[str, int] = {}
        """What the provider had counted (keys: `base.USAGE`) until a stream broke off: it may bill it."""


def from_status(status: int | None, body: object, headers: Mapping[str, str]) -> ModelError:
    """The error in a provider's answer. `status` is None, or 200, for an error inside a stream."""
    error_type, message = describe(body)
    kind = classify(status, error_type, message)
    wait = retry_after(headers) if kind in ("rate_limited", "overloaded") else None
    return ModelError(kind, _phrase(kind, status, message, wait), status=status, retry_after_s=wait)


def classify(status: int | None, error_type: str, message: str) -> Kind:
    """Status first where it is plain, then the provider's own type, then its words."""
    words, in_stream = f"{error_type} {message}", status in (None, 200)
    if status in (401, 403) or _AUTH.search(words):
        return "auth"
    if status == 408:
        return "timeout"
    if status == 402 or (_BILLING.search(words) and (in_stream or status in (400, 429))):
        return "billing"
    if status == 413 or (_CONTEXT.search(words) and (in_stream or status in (400, 422, 500))):
        return "context_too_long"
    if status == 429 or "rate_limit_error" in error_type:
        return "rate_limited"
    if status in (503, 529) or "overloaded" in error_type:
        return "overloaded"
    if status is not None and 300 <= status < 500:
        return "bad_request"
    return _by_words(status, error_type, words)


def _by_words(status: int | None, error_type: str, words: str) -> Kind:
    if _RATE.search(words):
        return "rate_limited"
    if _OVERLOADED.search(words) or (status is not None and status >= 500):
        return "overloaded"
    for pattern, kind in _IN_STREAM:
        if pattern.search(error_type):
            return kind
    return "bad_response"


def describe(body: object) -> tuple[str, str]:
    """Type and message of an error body: `{"error": {...}}`, its inside, or plain text."""
    inner: Any = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(inner, dict):
        return "", str(inner or "")
    named = [str(inner[key]) for key in ("type", "code") if inner.get(key)]
    return " ".join(named), str(inner.get("message") or inner.get("detail") or "")


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds to wait: `retry-after-ms`, or `retry-after` as seconds or as an HTTP date."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(ValueError):
            seconds = float(headers.get(name, "")) * unit_s
            if math.isfinite(seconds):
                return max(0.0, seconds)
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


def from_transport(error: Exception, *, began: bool) -> ModelError | None:
    """The error of a connection that failed, None if `error` is none. `began`: after the first event.

    The SDKs wrap such errors before the stream begins and (anthropic) let those of their HTTP library
    through afterwards; the library differs between SDK versions, so classes are told by name.
    """
    names = {base.__name__ for base in type(error).__mro__ if base.__module__.split(".")[0] in _HTTP_MODULES}
    if "TimeoutException" in names or "APITimeoutError" in names or isinstance(error, TimeoutError):
        return ModelError("timeout", "the provider did not answer in time")
    if names & {"RequestError", "APIConnectionError"} or isinstance(error, ssl.SSLError | OSError | EOFError):
        if began:
            return ModelError("stream_cut", "the connection broke off in the middle of the answer")
        return ModelError("connection", f"no connection to the provider ({_first_cause(error)})")
    return None


def _first_cause(error: BaseException) -> str:
    """What the operating system or TLS said, below all wrappings: `ConnectionRefusedError`, `gaierror`,
    `SSLCertVerificationError: CERTIFICATE_VERIFY_FAILED`."""
    for _ in range(20):
        below = error.__cause__ or error.__context__
        if below is None:
            break
        error = below
    name, reason = type(error).__name__, getattr(error, "reason", None)
    return f"{name}: {reason}" if isinstance(error, ssl.SSLError) and reason else name


_HTTP_MODULES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "anthropic", "openai"})


def named(
    error: ModelError, label: str, secrets: Iterable[str], usage: Mapping[str, int] | None = None
) -> ModelError:
    """`error` with the model's name in front, without any secret a provider may have echoed, and with
    the `usage` counted so far."""
    error.usage = dict(usage or {})
    error.message = redact(f"{label}: {error.message}", secrets)
    error.args = (error.message,)
    return error


def redact(message: str, secrets: Iterable[str]) -> str:
    """`message` without the secrets, and without any eight characters in a row of one.

    Stops a provider, or a proxy at `baseUrl`, from printing the key into logs, sessions and terminals
    by quoting it in an error (`tests/unit/llm/providers/test_failures.py`).
    """
    for secret in filter(None, secrets):
        message = message.replace(secret, "[key]")
        pieces = {secret[at : at + _KEY_PIECE] for at in range(len(secret) - _KEY_PIECE + 1)}
        for piece in pieces:
            message = message.replace(piece, "[key]")
    return message


def _phrase(kind: Kind, status: int | None, message: str, wait: float | None) -> str:
    code = f" ({status})" if status and status != 200 else ""
    if kind == "auth":  # the body is left out: providers quote parts of the key in it
        return f"the provider refused the key{code}: check llm.providers in the configuration"
    pause = f", retry after {wait:g} s" if wait is not None else ""
    words = {
        "rate_limited": "rate limited",
        "overloaded": "the provider is overloaded",
        "billing": "the provider's account has no credit",
        "bad_request": "the provider refused the request",
        "context_too_long": "the conversation is too long for the model",
        "timeout": "the provider did not answer in time",
    }.get(kind, "the provider answered with an error")
    detail = " ".join(message.split())[:_MESSAGE_LIMIT]
    return f"{words}{code}{pause}" + (f": {detail}" if detail else "")
