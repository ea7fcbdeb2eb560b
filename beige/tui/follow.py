"""Follows one turn through lost connections: every event once and in order, or a word that it is gone.

prompt ─► events ─► result | error
            │ the connection breaks
            └─► Lost ─► (asks again, after the last id) ─► Back ─► the events missed, and on
                                                      └──► Gone: the session's file has the rest
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from beige.tui.api import ApiError, Away
from beige.tui.sse import ServerEvent

PAUSES_S = (0.2, 0.5, 1.0, 2.0, 3.0)
"""Before each attempt to connect again; then the last one for ever: Esc or leaving ends it."""


class Streams(Protocol):
    """`api.Api`, as far as it is used here."""

    def prompt(self, agent: str, session: str, text: str) -> AsyncGenerator[ServerEvent, None]: ...

    def events(self, agent: str, session: str, after: str) -> AsyncGenerator[ServerEvent, None]: ...


@dataclass(frozen=True)
class Lost:
    """No connection; it is being tried again."""

    why: str


@dataclass(frozen=True)
class Back:
    """It is there again, and nothing was missed."""


@dataclass(frozen=True)
class Gone:
    """The gateway no longer has the turn's events (it was restarted): read the session."""

    why: str


Step = ServerEvent | Lost | Back | Gone
FINAL = ("result", "error")


def job(event_id: str) -> str:
    """The turn an event belongs to: ids are `<job>-<n>`."""
    return event_id.rpartition("-")[0]


class Follower:
    """One session's turns, one after the other."""

    def __init__(self, streams: Streams, agent: str, session: str, pauses_s: tuple[float, ...] = PAUSES_S):
        self._streams, self._agent, self._session, self._pauses_s = streams, agent, session, pauses_s
        self._last = ""
        """Id of the last event seen, of this turn or an earlier one."""

    async def turn(self, text: str) -> AsyncGenerator[Step, None]:
        """A new turn until its end. Away if the prompt was not sent, ApiError if it is refused."""
        before, seen = job(self._last), False
        try:
            async for event in self._streams.prompt(self._agent, self._session, text):
                seen = True
                self._last = event.id or self._last
                yield event
                if event.event in FINAL:
                    return
            why = "the stream ended early"
        except Away as error:
            if not error.sent:
                raise
            why = str(error)
        async for step in self._resumed(why, not_job="" if seen else before):
            yield step

    async def rest(self) -> AsyncGenerator[Step, None]:
        """What is left of a turn that this client did not begin, or left."""
        async for step in self._resumed("", not_job=""):
            yield step

    async def _resumed(self, why: str, not_job: str) -> AsyncGenerator[Step, None]:
        """`not_job`: an earlier turn; if its events come, the prompt never arrived."""
        if why:
            yield Lost(why)
        told, attempt = not why, 0
        while True:
            await asyncio.sleep(self._pauses_s[min(attempt, len(self._pauses_s) - 1)] if why else 0)
            attempt += 1
            after = "" if not_job else self._last
            try:
                async for event in self._streams.events(self._agent, self._session, after):
                    if not_job and job(event.id) == not_job:
                        yield Gone("the prompt did not arrive; send it again")
                        return
                    if not told:
                        told, attempt = True, 0
                        yield Back()
                    self._last = event.id or self._last
                    not_job = ""
                    yield event
                    if event.event in FINAL:
                        return
            except ApiError as error:
                if error.status >= 500:
                    why = why or error.message
                    continue
                yield Gone(error.message)
                return
            except Away as error:
                if told:
                    told = False
                    yield Lost(str(error))
                why = str(error)
