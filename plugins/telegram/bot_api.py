"""Speaks Telegram's Bot API over HTTPS: one call, one answer or a named failure.

The token is part of each URL: no exception, log line or repr made here holds one.
Source: core.telegram.org/bots/api, "Making requests" and the methods used.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import msgspec
from msgspec import Struct

MAX_ANSWER = 8 * 1024 * 1024
CALL_S = 30.0
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
MAX_PAUSE_S = 300.0


class ApiError(Exception):
    """Telegram refused the call."""

    def __init__(self, method: str, code: int, description: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{method}: {code} {description[:300]}")
        self.code, self.retry_after = code, retry_after

    @property
    def passes(self) -> bool:
        """Asking again later may help: too many requests, another poller, trouble over there."""
        return self.code in (409, 429) or self.code >= 500


class Unreachable(Exception):
    """No answer, or none of the Bot API."""


class User(Struct):
    id: int
    first_name: str = ""
    username: str = ""


class Chat(Struct):
    id: int
    type: str


class Message(Struct, rename={"sender": "from"}):
    message_id: int
    chat: Chat
    sender: User | None = None
    text: str = ""
    is_topic_message: bool = False
    message_thread_id: int | None = None


class Update(Struct):
    update_id: int
    message: Message | None = None


class _Numbered(Struct):
    update_id: int


class _Parameters(Struct):
    retry_after: float = 0.0


class _Answer(Struct):
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error_code: int = 0
    description: str = ""
    parameters: _Parameters = msgspec.field(default_factory=_Parameters)


class BotApi:
    """An async context manager."""

    def __init__(self, base: str, token: str) -> None:
        self._base, self._token = base, token
        for name in ("httpx", "httpcore"):  # they log URLs
            logging.getLogger(name).setLevel(logging.WARNING)

    async def __aenter__(self) -> BotApi:
        self._client = httpx.AsyncClient(timeout=CALL_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def call(
        self, method: str, params: dict[str, Any] | None = None, wait_s: float = 0.0
    ) -> msgspec.Raw:
        """The result's JSON. `wait_s`: how long the server holds the call back. ApiError, Unreachable."""
        try:
            async with asyncio.timeout(wait_s + CALL_S):
                body = await self._post(method, params or {}, wait_s)
            answer = msgspec.json.decode(body, type=_Answer)
        except (httpx.HTTPError, TimeoutError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unreachable(f"{method}: no answer of the Bot API ({type(error).__name__})") from None
        if not answer.ok:
            raise ApiError(method, answer.error_code, answer.description, answer.parameters.retry_after)
        return answer.result

    async def _post(self, method: str, params: dict[str, Any], wait_s: float) -> bytes:
        url, body = f"{self._base}/bot{self._token}/{method}", bytearray()
        timeout = httpx.Timeout(CALL_S, read=wait_s + CALL_S)
        async with self._client.stream("POST", url, json=params, timeout=timeout) as response:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER:
                    raise Unreachable(f"{method}: the answer is over {MAX_ANSWER} bytes")
        return bytes(body)

    async def insist(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        log: logging.Logger,
        wait_s: float = 0.0,
        attempts: int | None = None,
    ) -> msgspec.Raw:
        """`call`, again and again while that may help; `attempts` bounds it. ApiError, Unreachable."""
        for attempt in range(attempts or 2**31):
            try:
                return await self.call(method, params, wait_s)
            except (ApiError, Unreachable) as error:
                refused = isinstance(error, ApiError) and not error.passes
                if refused or attempt + 1 == attempts:
                    raise
                asked = error.retry_after if isinstance(error, ApiError) else 0.0
                pause = min(asked or PAUSES_S[min(attempt, len(PAUSES_S) - 1)], MAX_PAUSE_S)
                log.warning("%s; again in %g s", error, pause)
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")


def updates_of(result: msgspec.Raw) -> list[Update]:
    """What `getUpdates` returned. One that can't be read is kept by its number, so that it isn't sent again
    for ever."""
    return [_update(raw) for raw in msgspec.json.decode(result, type=list[msgspec.Raw])]


def _update(raw: msgspec.Raw) -> Update:
    try:
        return msgspec.json.decode(raw, type=Update)
    except msgspec.ValidationError:
        return Update(msgspec.json.decode(raw, type=_Numbered).update_id)
