"""Writes a job's events to one client, as SSE or as JSON lines, from where it left off.

id: 9f3c5a7e01b2c4d6-12                 {"id":"9f3c5a7e01b2c4d6-12","kind":"text_delta","text":"Hi"}
event: text_delta
data: {"kind":"text_delta","text":"Hi"}
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response, StreamingResponse

from services.gateway.api import Call
from services.gateway.errors import encoded, unauthorized
from services.gateway.jobs import Event, Gap, Job

SSE, NDJSON = "text/event-stream", "application/x-ndjson"
HEARTBEAT_S = 15.0
"""An SSE stream without events gets a comment this often, and a quiet stream's token is looked at."""
Format = Callable[[str, str, bytes], bytes]


def sse(event_id: str, kind: str, data: bytes) -> bytes:
    head = f"id: {event_id}\nevent: {kind}\n" if event_id else f"event: {kind}\n"
    return head.encode() + b"data: " + data + b"\n\n"


def ndjson(event_id: str, kind: str, data: bytes) -> bytes:
    return (b'{"id":"%s",' % event_id.encode() + data[1:] if event_id else data) + b"\n"


def response(call: Call, job: Job, after: int, *, cancel_on_disconnect: bool = False) -> Response:
    """The job's events after `after`, those to come too, until its last one."""
    as_sse = call.wants(SSE)
    events = _follow(call, job, after, sse if as_sse else ndjson, cancel_on_disconnect)
    return StreamingResponse(
        events, media_type=SSE if as_sse else NDJSON,
        headers={"beige-job": job.id, "beige-session": job.session, "x-accel-buffering": "no"},
    )  # fmt: skip


async def _follow(call: Call, job: Job, after: int, form: Format, cancel: bool) -> AsyncIterator[bytes]:
    tokens = call.gateway.tokens
    try:
        while await _more(job, after):
            gap, events = job.take(after)
            if not tokens.still_good(call.token):
                # Stops a token that was taken back from listening on
                # (`test_a_revoked_token_ends_its_streams`).
                yield form(
                    "",
                    "error",
                    b'{"kind":"error",' + encoded(unauthorized("the token is no longer good"))[1:],
                )
                return
            if events or gap:
                yield _piece(job, gap, events, form)
                after = events[-1].number if events else after
            elif form is sse:
                yield b": still here\n\n"
    finally:
        if cancel and not job.done:
            job.cancel()


async def _more(job: Job, after: int) -> bool:
    """False at the end; True when there is more, or nothing happened for a while."""
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            return await job.more(after)
    except TimeoutError:
        return True


def _piece(job: Job, gap: Gap | None, events: list[Event], form: Format) -> bytes:
    parts = [form(f"{job.id}-{event.number}", event.kind, event.data) for event in events]
    if gap is not None:
        parts.insert(0, form("", "gone", b'{"kind":"gone","first":%d,"last":%d}' % (gap.first, gap.last)))
    return b"".join(parts)
