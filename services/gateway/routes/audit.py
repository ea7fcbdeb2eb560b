"""The endpoint that asks the audit log. The log's file is the audit process's: this one never opens it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from beige.config.models import NAME_PATTERN
from beige.messages.audit import AuditPage, AuditQuery
from beige.tokens import ANY_AGENT
from services.gateway.access import check_scope
from services.gateway.api import Call, Endpoint, Shape, whole

AUDIT_S = 60.0
Word = Annotated[str, Meta(max_length=256)]


class AuditParameters(Shape):
    agent: Annotated[str, Meta(pattern=whole(NAME_PATTERN))] | None = None
    session: Word = ""
    tool: Word = ""
    before: Word = ""
    """`before` of the last page."""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


async def query(call: Call) -> AuditPage:
    """Of the agents that the token is for, whatever is asked."""
    asked: AuditParameters = call.query
    agents = [] if ANY_AGENT in call.token.agents else list(call.token.agents)
    if asked.agent:
        check_scope(call.token, (), asked.agent)
        agents = [asked.agent]
    body = AuditQuery(agents, asked.session, asked.tool, asked.before, asked.limit)
    page: AuditPage = await call.gateway.bus.call("audit.query", body, ttl_s=AUDIT_S)
    return page


ENDPOINTS = (
    Endpoint("GET", "/api/audit", "Records of the audit log, the newest first.", query, ("read",),
             query=AuditParameters, reply=AuditPage),
)  # fmt: skip
