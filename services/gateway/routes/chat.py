"""The endpoint that makes one model call for a client that runs its own loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from beige.config.models import NAME_PATTERN
from beige.errors import BeigeError, Denied, NotFound
from beige.messages.chat import ChatEvent, ChatMessage, ChatRequest, ChatResult, ChatTool, Words
from services.gateway.access import check_scope
from services.gateway.api import Call, Endpoint, Shape, whole
from services.gateway.errors import body_of
from services.gateway.streams import NDJSON

CHAT_S = 3600.0


class ChatBody(Shape):
    agent: Annotated[str, Meta(pattern=whole(NAME_PATTERN))]
    """Whose models, fallbacks and budget are used."""
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=2000)]
    """The whole conversation; the last one is the user's or a tool's."""
    system: Words = ""
    tools: Annotated[list[ChatTool], Meta(max_length=128)] = []
    """Yours: you run them, and call again with their results."""
    model: Annotated[str, Meta(max_length=512)] = ""
    """`provider/model`, one of the agent's own; left out: its first."""


async def chat(call: Call) -> Response:
    body: ChatBody = call.body
    check_scope(call.token, (), body.agent)
    if body.agent not in call.gateway.config.agents:
        raise NotFound(f"there is no agent {body.agent!r}")
    request = ChatRequest(body.messages, body.system, body.tools, body.model)
    return StreamingResponse(_events(call, body.agent, request), media_type=NDJSON)


async def _events(call: Call, agent: str, request: ChatRequest) -> AsyncIterator[bytes]:
    """Ends with `done`, `blocked` (policy's no) or `error`. Who goes away ends the model call."""
    try:
        async with call.gateway.bus.open(
            "llm.chat", request, agent=agent, channel=call.channel, ttl_s=CHAT_S
        ) as stream:
            async for event in stream:
                yield _line(event)
            result: ChatResult = await stream.result()
            yield _line({"kind": "done", **msgspec.to_builtins(result)})
    except Denied as error:
        yield _line({"kind": "blocked", **msgspec.to_builtins(body_of(error))})
    except BeigeError as error:
        yield _line({"kind": "error", **msgspec.to_builtins(body_of(error))})


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


ENDPOINTS = (
    Endpoint("POST", "/api/chat/stream", "One model call, for a loop of your own.", chat, ("prompt",),
             body=ChatBody, stream=ChatEvent),
)  # fmt: skip
