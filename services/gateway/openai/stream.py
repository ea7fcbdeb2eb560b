"""Writes a turn's answer to one client while it is written. When either ends, so does the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from beige.errors import BeigeError
from services.gateway.api import Call
from services.gateway.errors import HttpError, gone, unauthorized
from services.gateway.jobs import Event
from services.gateway.openai.turns import Turn
from services.gateway.openai.wire import ALIVE, Answer, Text
from services.gateway.streams import HEARTBEAT_S, SSE


class Stream(StreamingResponse):
    def __init__(self, call: Call, turn: Turn, answer: Answer) -> None:
        super().__init__(_pieces(call, turn, answer), media_type=SSE, headers=headers(turn))
        self._turns, self._turn = call.gateway.openai, turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whatever ends it, also before its first byte, the turn is left."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._turns.left(self._turn)


def headers(turn: Turn) -> dict[str, str]:
    return {"beige-job": turn.job.id, "beige-session": turn.job.session, "x-accel-buffering": "no"}


async def _pieces(call: Call, turn: Turn, answer: Answer) -> AsyncIterator[bytes]:
    text = Text()
    try:
        yield answer.begin()
        async for events in _follow(call, turn):
            new = text.add(events)
            yield answer.text(new) if new else ALIVE
        result = await turn.job.ended()
        await call.gateway.openai.delivered(turn, str(text))
        yield answer.end(str(text), result)
    except (BeigeError, HttpError) as error:
        yield answer.error(error)


async def _follow(call: Call, turn: Turn) -> AsyncIterator[list[Event]]:
    """The turn's events as they come; an empty list when nothing happened for a while. HttpError if the
    token is no longer good, or if the client reads so slowly that a part of the answer is gone."""
    job, after = turn.job, 0
    while await _more(turn, after):
        gap, events = job.take(after)
        if not call.gateway.tokens.still_good(call.token):
            # Stops a token that was taken back from listening on (`test_a_revoked_token_hears_no_more`).
            raise unauthorized("the token is no longer good")
        if gap is not None:
            raise gone("the answer was read too slowly: a part of it is no longer kept here")
        yield events
        after = events[-1].number if events else after


async def _more(turn: Turn, after: int) -> bool:
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            return await turn.job.more(after)
    except TimeoutError:
        return True
