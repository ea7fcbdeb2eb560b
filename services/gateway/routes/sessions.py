"""Endpoints about conversations: list, look at, read, fork, compact, remove, their settings."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from beige.errors import Failed
from beige.messages.base import AgentRef
from beige.messages.llm import (
    CompactRequest,
    CompactResult,
    ForkRequest,
    HistoryRequest,
    SessionInfo,
    SessionList,
    SessionsRequest,
)
from beige.messages.session_settings import (
    NAMES,
    SessionSettings,
    SettingsReply,
    SettingsRequest,
    ThinkingLevel,
)
from beige.sessions import new_id, turn_options
from services.gateway.api import Call, Endpoint, Shape
from services.gateway.routes.prompts import SessionName

HISTORY_BYTES = 4 * 1024 * 1024
"""Most of a history in one answer; `next` says where to go on."""
ENTRY_BYTES = 32 * 1024 * 1024


class SessionsQuery(Shape):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class NewSession(Shape, omit_defaults=False):
    session: str
    """A name that is free. Nothing is on disk before its first prompt."""


class HistoryQuery(Shape):
    after: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Skip so many entries."""


class History(Shape, omit_defaults=False):
    entries: list[Raw]
    """As they are in the session's file (docs/llm.md)."""
    next: int
    """`after` of the following page."""
    more: bool


class ForkBody(Shape):
    to: SessionName | None = None
    """The new session's name; left out: one is made up."""
    prompts: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Copy only the first so many turns; 0: all."""


class CompactBody(Shape):
    instructions: Annotated[str, Meta(max_length=16 * 1024)] = ""
    """What the summary must keep, in words for the model."""


class SettingsBody(Shape):
    """What is left out stays as it is; null takes a setting back, so that the layer below shows."""

    verbose: bool | UnsetType | None = UNSET
    streaming: bool | UnsetType | None = UNSET
    model: Annotated[str, Meta(min_length=1, max_length=512)] | UnsetType | None = UNSET
    thinking_level: ThinkingLevel | UnsetType | None = UNSET


async def listing(call: Call) -> SessionList:
    result: SessionList = await call.bus("llm.sessions", SessionsRequest(call.query.limit))
    return result


async def create(call: Call) -> NewSession:
    return NewSession(new_id())


async def show(call: Call) -> SessionInfo:
    result: SessionInfo = await call.bus("llm.session", AgentRef())
    return result


async def remove(call: Call) -> SessionInfo:
    result: SessionInfo = await call.bus("llm.remove", AgentRef())
    return result


async def fork(call: Call) -> SessionInfo:
    result: SessionInfo = await call.bus("llm.fork", ForkRequest(call.body.to or "", call.body.prompts))
    return result


async def compact(call: Call) -> CompactResult:
    """Ends when its client goes away."""
    options = turn_options(call.agent, call.session, call.channel)
    work = call.gateway.bus.call("llm.compact", CompactRequest(call.body.instructions), **options)
    result: CompactResult = await call.while_connected(work)
    return result


async def history(call: Call) -> History:
    """Whole entries, as many as fit."""
    body, data, whole = HistoryRequest(call.query.after), bytearray(), False
    opened = call.gateway.bus.open(
        "llm.history", body, agent=call.agent, session=call.session, channel=call.channel
    )
    async with opened as stream:
        async for chunk in stream:
            data += chunk
            if len(data) >= HISTORY_BYTES and b"\n" in data:
                break
            if len(data) > ENTRY_BYTES:
                raise Failed(f"an entry of this session has more than {ENTRY_BYTES} bytes")
        else:
            await stream.result()
            whole = True
    return await asyncio.to_thread(_page, call.query.after, bytes(data), whole)


def _page(after: int, data: bytes, whole: bool) -> History:
    lines = data.split(b"\n")
    lines.pop()  # after the last newline: nothing, or the beginning of what doesn't fit
    for line in lines:
        try:
            msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise Failed("the session's file is not readable", executed="no") from None
    return History([Raw(line) for line in lines], after + len(lines), not whole)


async def settings(call: Call) -> SettingsReply:
    result: SettingsReply = await call.bus("llm.settings", SettingsRequest())
    return result


async def change_settings(call: Call) -> SettingsReply:
    given = msgspec.to_builtins(call.body)
    unset = [name for name in NAMES if name in given and given[name] is None]
    wanted = msgspec.convert({k: v for k, v in given.items() if v is not None}, SessionSettings)
    result: SettingsReply = await call.bus("llm.settings", SettingsRequest(set=wanted, unset=unset))
    return result


_ONE = "/api/agents/{agent}/sessions/{session}"
ENDPOINTS = (
    Endpoint("GET", "/api/agents/{agent}/sessions", "The agent's sessions, the last used one first.", listing,
             ("read", "prompt"), query=SessionsQuery, reply=SessionList),
    Endpoint("POST", "/api/agents/{agent}/sessions", "A name for a new session.", create, ("prompt",),
             reply=NewSession, status=201),
    Endpoint("GET", _ONE, "One session.", show, ("read", "prompt"), reply=SessionInfo),
    Endpoint("DELETE", _ONE, "Remove a session and its file.", remove, ("prompt",), reply=SessionInfo),
    Endpoint("GET", f"{_ONE}/history", "What was said and done, as the session's file has it.", history,
             ("read", "prompt"), query=HistoryQuery, reply=History),
    Endpoint("POST", f"{_ONE}/fork", "Copy a session under another name.", fork, ("prompt",),
             body=ForkBody, reply=SessionInfo, status=201),
    Endpoint("POST", f"{_ONE}/compact", "Summarise the older turns now.", compact, ("prompt",),
             body=CompactBody, reply=CompactResult),
    Endpoint("GET", f"{_ONE}/settings", "The session's settings, and where each is from.", settings,
             ("read", "prompt"), reply=SettingsReply),
    Endpoint("PATCH", f"{_ONE}/settings", "Change settings of the session; null takes one back.",
             change_settings, ("prompt",), body=SettingsBody, reply=SettingsReply),
)  # fmt: skip
