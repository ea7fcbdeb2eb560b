"""A prompt as a job: numbered events in a bounded buffer, which any number of clients may follow.

Pure but for its clock: who runs the prompt adds events, who follows takes them at his own pace. A client
that drops, or reads slowly, costs the job nothing; one that comes back too late is told what is gone.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from beige.errors import BeigeError, Malformed, NotFound, Overloaded
from beige.messages.llm import PromptEvent, PromptResult
from services.gateway.errors import body_of, gone

JOB_BYTES = 1024 * 1024
"""Most bytes of events kept of one job."""
ALL_BYTES = 128 * 1024 * 1024
"""Most bytes of events kept of all jobs."""
PIECE_BYTES = 64 * 1024
"""About how much a follower takes at once."""
MAX_RUNNING, MAX_ENDED = 1000, 256
KEEP_S = 600.0
"""How long a job's events can be asked for after its end."""
_EVENT_ID = re.compile(r"([0-9a-f]{16})-([0-9]{1,9})\Z")


@dataclass(frozen=True)
class Event:
    number: int
    kind: str
    data: bytes
    """A JSON object with `kind`, on one line."""


@dataclass(frozen=True)
class Gap:
    """Events that are no longer kept."""

    first: int
    last: int


@dataclass
class Kept:
    """Bytes kept by all jobs together."""

    size: int = 0


class Job:
    """One prompt. `result` or `error` is set at its end."""

    def __init__(self, agent: str, session: str, kept: Kept) -> None:
        self.id = secrets.token_hex(8)
        self.agent, self.session = agent, session
        self.result: PromptResult | None = None
        self.error: BeigeError | None = None
        self.accepted = False
        """The prompt is on disk, and its turn has begun."""
        self.cancel: Callable[[], object] = lambda: None
        """Ends it; set by who runs it."""
        self._kept, self._size = kept, 0
        self._events: dict[int, Event] = {}
        self._first, self._next = 1, 1
        self._changed = asyncio.Event()

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    def event(self, event: PromptEvent) -> None:
        self.accepted |= event.kind == "accepted"
        self._add(event.kind, msgspec.json.encode(event))

    def end(self, end: PromptResult | BeigeError) -> None:
        """The last event. Nothing comes after it."""
        if self.done:
            return
        if isinstance(end, BeigeError):
            self.error = end
            self._add("error", _tagged("error", body_of(end)))
        else:
            self.result = end
            self._add("result", _tagged("result", end))

    def take(self, after: int) -> tuple[Gap | None, list[Event]]:
        """What follows event `after`: first what is gone of it, then some of what is there."""
        start = max(after + 1, self._first)
        gap = Gap(after + 1, start - 1) if start > after + 1 else None
        found, size = [], 0
        for number in range(start, self._next):
            found.append(self._events[number])
            size += len(found[-1].data)
            if size >= PIECE_BYTES:
                break
        return gap, found

    def check(self, after: int) -> None:
        """Malformed if there was no event `after`."""
        if after >= self._next:
            raise Malformed(f"Last-Event-ID: this job has no event {after} yet")

    async def more(self, after: int) -> bool:
        """Wait until there is an event after `after`; False if none will come."""
        while self._next <= after + 1:
            if self.done:
                return False
            await self._changed.wait()
        return True

    async def ended(self) -> PromptResult:
        """The result, when it is there. BeigeError if it ended otherwise."""
        while not self.done:
            await self._changed.wait()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def forget(self) -> None:
        """Keep no event any longer."""
        while self._events:
            self._drop_oldest()

    def _add(self, kind: str, data: bytes) -> None:
        self._events[self._next] = Event(self._next, kind, data)
        self._next += 1
        self._size += len(data)
        self._kept.size += len(data)
        while len(self._events) > 1 and (self._size > JOB_BYTES or self._kept.size > ALL_BYTES):
            self._drop_oldest()
        self._changed.set()
        self._changed = asyncio.Event()

    def _drop_oldest(self) -> None:
        size = len(self._events.pop(self._first).data)
        self._first += 1
        self._size -= size
        self._kept.size -= size


class Jobs:
    """The jobs that run, and the last ones that ended."""

    def __init__(self) -> None:
        self._kept = Kept()
        self._jobs: dict[str, Job] = {}
        self._latest: dict[tuple[str, str], Job] = {}
        self._ended: dict[str, Job] = {}
        """Oldest first."""

    def new(self, agent: str, session: str) -> Job:
        """Overloaded if too many run."""
        if len(self.running) >= MAX_RUNNING:
            raise Overloaded(f"{MAX_RUNNING} prompts are running")
        job = Job(agent, session, self._kept)
        self._jobs[job.id] = self._latest[agent, session] = job
        return job

    @property
    def running(self) -> list[Job]:
        return [job for job in self._jobs.values() if not job.done]

    def ended(self, job: Job) -> None:
        """Keep it for those who come back; the oldest go."""
        self._ended[job.id] = job
        while len(self._ended) > MAX_ENDED:
            self.forget(next(iter(self._ended.values())))

    def forget(self, job: Job) -> None:
        job.forget()
        self._ended.pop(job.id, None)
        self._jobs.pop(job.id, None)
        if self._latest.get((job.agent, job.session)) is job:
            del self._latest[job.agent, job.session]

    def find(self, agent: str, session: str, event_id: str) -> tuple[Job, int]:
        """The job to follow, and the event after which: the one `event_id` names, else the session's
        latest from its beginning. HttpError 410 if the named one is gone."""
        if not event_id:
            latest = self._latest.get((agent, session))
            if latest is None:
                raise NotFound("no prompt of this session is running or ended lately: read its history")
            return latest, 0
        if not (match := _EVENT_ID.match(event_id)):
            raise Malformed("Last-Event-ID: is not the id of an event")
        job, after = self._jobs.get(match[1]), int(match[2])
        if job is None or (job.agent, job.session) != (agent, session):
            raise gone(
                "the events of this prompt are no longer here (it ended a while ago, or the gateway was "
                "restarted): the session's history has what came of it"
            )
        job.check(after)
        return job, after


def _tagged(kind: str, body: msgspec.Struct) -> bytes:
    return msgspec.json.encode({"kind": kind, **msgspec.to_builtins(body)})
