"""Bodies of `audit.*`: what operators ask of the audit log."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from beige.auditlog import Record
from beige.messages.base import Body, Method

Word = Annotated[str, Meta(max_length=256)]


class AuditQuery(Body):
    """What is asked for; empty means any."""

    agents: Annotated[list[Word], Meta(max_length=1000)] = []
    session: Word = ""
    tool: Word = ""
    before: Word = ""
    """Only records older than this time (`ts`): the next page."""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class AuditPage(Body):
    """The newest first. Records of one millisecond are never on two pages."""

    records: list[Record]
    before: str = ""
    """Of the next page; empty when there is none, or when as much of the log was read as one question may."""
    complete: bool = True
    """False: older records were not looked at."""


METHODS = {"audit.query": Method(AuditQuery, AuditPage)}
