"""Endpoints that give an agent a task and follow it."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field
from starlette.responses import Response

from beige.messages.base import Empty
from beige.messages.bus import CancelResult
from beige.messages.llm import PromptEvent, PromptRequest, PromptResult
from beige.messages.session_settings import SessionSettings
from services.gateway import streams
from services.gateway.api import SESSION_PATTERN, Call, Endpoint, Shape, whole
from services.gateway.jobs import Job

SessionName = Annotated[str, Meta(pattern=whole(SESSION_PATTERN))]


class PromptBody(Shape):
    text: Annotated[str, Meta(min_length=1, max_length=512 * 1024)]
    session: SessionName | None = None
    """Continue this conversation, or begin one of this name; left out: a new one."""
    stream: bool = False
    cancel_on_disconnect: bool = False
    """The turn ends when this client goes away; else it goes on, and can be followed again."""
    settings: SessionSettings = field(default_factory=SessionSettings)
    """Your own defaults; what was set for the session goes before them."""


class EventsQuery(Shape):
    after: Annotated[str, Meta(max_length=64)] = ""
    """An event's id, as in the header Last-Event-ID."""


async def prompt(call: Call) -> Any:
    body: PromptBody = call.body
    request = PromptRequest(body.text, settings=body.settings)
    job = call.gateway.prompts.start(call.agent, body.session or "", call.channel, request)
    if body.stream:
        return streams.response(call, job, 0, cancel_on_disconnect=body.cancel_on_disconnect)
    try:
        return await call.while_connected(job.ended())
    finally:
        if body.cancel_on_disconnect:
            job.cancel()


async def events(call: Call) -> Response:
    """The stream of the prompt that runs or ran last, or of the one that the id names, from there on."""
    job: Job
    event_id = call.request.headers.get("last-event-id") or call.query.after
    job, after = call.gateway.prompts.jobs.find(call.agent, call.session, event_id)
    return streams.response(call, job, after)


async def cancel(call: Call) -> CancelResult:
    """Ends what runs and waits in this session, whoever asked for it."""
    result: CancelResult = await call.bus("bus.cancel", Empty())
    return result


ENDPOINTS = (
    Endpoint("POST", "/api/agents/{agent}/prompt", "Give the agent a task.", prompt, ("prompt",),
             body=PromptBody, reply=PromptResult, stream=PromptEvent),
    Endpoint("GET", "/api/agents/{agent}/sessions/{session}/events", "Follow a prompt.",
             events, ("prompt", "read"), query=EventsQuery, stream=PromptEvent, errors=(410,),
             headers={"Last-Event-ID": "Go on after this event."}),
    Endpoint("POST", "/api/agents/{agent}/sessions/{session}/cancel", "Cancel the session's prompts.", cancel,
             ("prompt",), reply=CancelResult),
)  # fmt: skip
