"""Serves `policy.lease`: a call stays open while it waits for a slot and while it holds one.

Whatever ends the call (report, cancel, death of the worker or of the caller) gives the slot back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from beige.bus.credit import Receiver
from beige.errors import Denied, Malformed, Overloaded, PeerLost
from beige.messages.policy import LeaseItem, LeaseReport, LeaseRequest, LeaseResult
from beige.wire import DECODE_ERRORS
from services.policy import health
from services.policy.leases import Cooldowns, ModelKey, Slots, Ticket, allowed_model

log = logging.getLogger("policy")
MAX_LEASES = 2048
"""Leases open at once. Well below the service's capacity, so that there is always room to authorize."""

_report = msgspec.msgpack.Decoder(LeaseReport)


class LeaseCall(Protocol):
    """`beige.bus.Request`, as far as it is used here."""

    agent: str
    src: str
    parent_call: str

    async def send(self, item: LeaseItem) -> None: ...
    def items(self) -> AsyncIterator[bytes]: ...
    def open_upstream(self) -> Receiver: ...


class Desk:
    """All leases of one policy process."""

    def __init__(self, models: Mapping[str, frozenset[ModelKey]], limits: Mapping[str, int], path: Path,
                 clock: Callable[[], float] = time.time) -> None:  # fmt: skip
        """`models`: agent to what it may call. `limits`: provider to `concurrency`. `path`: the health
        file."""
        self._models, self._path, self._clock = models, path, clock
        self._slots = Slots(limits)
        self._cooldowns = Cooldowns(health.load(path), clock())
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._open: dict[str, asyncio.Task[object]] = {}
        """By the prompt's call: one lease at a time for each."""
        self._closing = False

    async def lease(self, request: LeaseCall, body: LeaseRequest) -> LeaseResult:
        """Denied for a model that is not the agent's own; not granted while it is cooling down."""
        model = (body.provider, body.model)
        if reason := allowed_model(self._models, request.agent, model):
            raise Denied(reason)
        if cooling := self._cooling(model):
            return cooling
        task = self._admit(request.parent_call)
        try:
            return await self._serve(request, model)
        except asyncio.CancelledError:
            if self._closing:
                raise PeerLost("policy is being restarted", executed="no") from None
            raise
        finally:
            if self._open.get(request.parent_call) is task:
                del self._open[request.parent_call]

    def _admit(self, parent: str) -> asyncio.Task[object]:
        """A prompt makes one model call at a time: more is an llm worker in hostile hands, that would
        fill policy with open leases until nothing is authorized (`tests/processes/test_leases.py`)."""
        task = asyncio.current_task()
        assert task is not None
        if self._closing:
            raise PeerLost("policy is being restarted", executed="no")
        if parent in self._open:
            raise Overloaded("this prompt has a lease already")
        if len(self._open) >= MAX_LEASES:
            raise Overloaded(f"more than {MAX_LEASES} leases are open")
        self._open[parent] = task
        return task

    async def _serve(self, request: LeaseCall, model: ModelKey) -> LeaseResult:
        ticket = self._slots.enter(model)
        try:
            while not ticket.granted and not self._cooling(model):
                await self._wait(request, ticket)
            if cooling := self._cooling(model):
                return cooling
            request.open_upstream()
            await request.send(LeaseItem("granted"))
            return await self._reported(request, model)
        finally:
            for granted in self._slots.leave(ticket):
                self._wake(granted)

    async def _wait(self, request: LeaseCall, ticket: Ticket) -> None:
        """Until the ticket is granted, or its model cools down."""
        waiter = self._waiters[ticket] = asyncio.get_running_loop().create_future()
        try:
            await request.send(LeaseItem("waiting", self._slots.ahead(ticket)))
            await waiter
        finally:
            del self._waiters[ticket]

    def _wake(self, ticket: Ticket) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _reported(self, request: LeaseCall, model: ModelKey) -> LeaseResult:
        async for item in request.items():
            try:
                report = _report.decode(item)
            except DECODE_ERRORS as error:
                raise Malformed(f"policy.lease: report: {error}") from None
            self._note(request, model, report)
            break
        return LeaseResult(granted=True, cooling_s=self._cooldowns.left_s(model, self._clock()))

    def _note(self, request: LeaseCall, model: ModelKey, report: LeaseReport) -> None:
        if not self._cooldowns.note(model, report, self._clock()):
            return
        active = self._cooldowns.active(self._clock())
        health.save(self._path, active)
        told = {"model": "/".join(model), "agent": request.agent, "reported_by": request.src}
        log.warning("cooling down for %.0f s", active[model] - self._clock(), extra=told)
        for ticket in self._slots.waiting(model):
            self._wake(ticket)

    def _cooling(self, model: ModelKey) -> LeaseResult | None:
        left = self._cooldowns.left_s(model, self._clock())
        if not left:
            return None
        return LeaseResult(
            granted=False, cooling_s=left, reason=f"cooling down after a rate limit, {left:.0f} s to go"
        )

    async def close(self) -> None:
        """End every lease: their holders ask the next policy process, or finish without."""
        self._closing = True
        for task in list(self._open.values()):
            task.cancel()
