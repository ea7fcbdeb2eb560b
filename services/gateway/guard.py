"""The ASGI layer around everything: lets in who may, bounds the body, answers errors, writes the log."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from beige.errors import BeigeError, TooLarge
from services.gateway import access, errors
from services.gateway.errors import HttpError, internal, status_of
from services.gateway.openai import errors as openai_errors
from services.gateway.tokens import Tokens

PUBLIC = frozenset({"/api/health"})
PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, PATCH, DELETE"),
    (b"access-control-max-age", b"600"),
)
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]+(?: ?, ?[A-Za-z0-9-]+)*\Z")
log = logging.getLogger("gateway")
access_log = logging.getLogger("gateway.access")


class Body:
    """A request's body as it comes in, counted and timed: stops bodies that never end
    (`test_a_body_that_never_ends_is_given_up`)."""

    def __init__(self, receive: Receive, limit_bytes: int, limit_s: float) -> None:
        self._receive, self._limit_bytes = receive, limit_bytes
        self._end = asyncio.get_running_loop().time() + limit_s
        self._size = 0
        self.complete = False

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            text = "the request's body took too long: set gateway.readTimeoutS"
            raise HttpError(408, "deadline_exceeded", text, access.CLOSE) from None
        self._size += len(message.get("body", b""))
        if self._size > self._limit_bytes:
            raise TooLarge(f"the request's body is bigger than {self._limit_bytes} bytes")
        self.complete = not message.get("more_body", False)
        return message


class Answer:
    """The response on its way out: adds what every response has, remembers its status."""

    def __init__(self, send: Send, body: Body, expects_continue: bool, origin: str) -> None:
        """`origin`: the allowed origin of the page that asks, if it is one."""
        self._send, self._body, self._expects_continue = send, body, expects_continue
        self._added = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
        if origin:
            self._added += [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin"),
                            (b"access-control-expose-headers", b"beige-job, beige-session")]  # fmt: skip
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            added = list(self._added)
            if self._expects_continue and not self._body.complete:
                # It was not told to go on. What comes next on this connection could be the body as well
                # as a new request, so nothing more is read from it.
                added.append((b"connection", b"close"))
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await self._send(message)

    async def preflight(self, wanted: str) -> None:
        """`wanted`: the headers a page of an allowed origin wants to send. It may send any: clients of
        OpenAI's API add their own, and none but the token opens anything here."""
        headers = list(PREFLIGHT)
        if _HEADER_NAMES.match(wanted):
            headers.append((b"access-control-allow-headers", wanted.encode("latin-1")))
        await self.send({"type": "http.response.start", "status": 204, "headers": headers})
        await self.send({"type": "http.response.body"})

    async def error(self, error: BeigeError | HttpError, path: str) -> None:
        form = openai_errors if path.startswith(openai_errors.PREFIX) else errors
        body = form.encoded(error)
        told = [(name.encode(), value.encode()) for name, value in form.headers_of(error).items()]
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *told]
        await self.send({"type": "http.response.start", "status": status_of(error), "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


class Guard:
    def __init__(self, app: ASGIApp, door: access.Door, tokens: Tokens, max_body: int, body_s: float) -> None:
        """`body_s`: from a request's head to the end of its body, in seconds."""
        self._app, self._door, self._tokens = app, door, tokens
        self._max_body, self._body_s = max_body, body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(receive, self._max_body, self._body_s)
        headers: access.Headers = scope["headers"]
        origin = access.allowed_origin(self._door, headers)
        answer = Answer(send, body, access.header(headers, b"expect") != "", origin)
        started = time.monotonic()
        try:
            self._admit(scope, origin)
            if origin and _is_preflight(scope):
                await answer.preflight(access.header(headers, b"access-control-request-headers"))
            else:
                await self._app(scope, body.receive, answer.send)
        except (BeigeError, HttpError) as error:
            await self._refuse(answer, error, scope["path"])
        except Exception:
            log.exception("a request failed")
            await self._refuse(answer, internal(), scope["path"])
        finally:
            _write_down(scope, answer.status, time.monotonic() - started)

    def _admit(self, scope: Scope, allowed_origin: str) -> None:
        """HttpError if the request may not come in. Nothing of its body is read before."""
        headers: access.Headers = scope["headers"]
        access.check_head(headers, scope["raw_path"] + scope["query_string"], scope["http_version"])
        access.check_host(self._door, headers)
        access.check_origin(self._door, headers)
        if scope["path"] not in PUBLIC and not (allowed_origin and _is_preflight(scope)):
            scope["state"]["token"] = self._tokens.present(headers)
        length = access.header(headers, b"content-length")
        if length and int(length) > self._max_body:
            raise TooLarge(f"the request's body has {length} bytes; the limit is {self._max_body}")

    async def _refuse(self, answer: Answer, error: BeigeError | HttpError, path: str) -> None:
        if answer.status:
            raise error  # the response has begun: only its end can say that it is not whole
        await answer.error(error, path)


def _is_preflight(scope: Scope) -> bool:
    """A browser asks what a page may send: it can't send a token yet."""
    names = {name for name, _ in scope["headers"]}
    return scope["method"] == "OPTIONS" and b"access-control-request-method" in names


def _write_down(scope: Scope, status: int, seconds: float) -> None:
    """One line per request: no header, no query, no body, so no token and no word of a conversation."""
    token: Any = scope["state"].get("token")
    path = scope["path"]
    told = {
        "method": scope["method"][:16],
        "path": path if len(path) <= 200 else path[:200] + "…",
        "status": status,
        "ms": round(seconds * 1000, 1),
        "token": token.name if token else "",
    }
    access_log.info("%s %s", told["method"], told["path"], extra=told)
