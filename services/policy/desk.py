"""Serves `policy.lease`: a call stays open while it waits for a slot and while it holds one.

Whatever ends the call (report, cancel, death of the worker or of the caller) gives the slot back, and
settles what was reserved of the budget. Only the end of policy itself doesn't: the answer under way goes
on, and its worker takes the lease up again with the next policy process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from beige.bus.credit import Receiver
from beige.errors import Malformed, NotFound, Overloaded, PeerLost
from beige.messages.policy import LeaseItem, LeaseReport, LeaseRequest, LeaseResult
from beige.money import COUNTED, ModelKey
from beige.wire import DECODE_ERRORS, ModelUse, Outcome
from services.policy import health
from services.policy.budget import Amount
from services.policy.budgets import Budgets, Grant, OverBudget, Whose
from services.policy.leases import Cooldowns, Slots, Ticket

log = logging.getLogger("policy")
MAX_LEASES = 2048
"""Leases open at once. Well below the service's capacity, so that there is always room to authorize."""
TAKE_UP_S = 10.0
"""So long after its start policy keeps the leases of its predecessor for their holders. Meanwhile their
slots are taken, so that `concurrency` holds over a restart."""

_report = msgspec.msgpack.Decoder(LeaseReport)


class LeaseCall(Protocol):
    """`beige.bus.Request`, as far as it is used here."""

    agent: str
    session: str
    src: str
    call_name: str
    parent_call: str
    outcome: Outcome

    async def send(self, item: LeaseItem) -> None: ...
    def items(self) -> AsyncIterator[bytes]: ...
    def open_upstream(self) -> Receiver: ...


@dataclass(frozen=True)
class Held:
    """A lease that is out."""

    grant: Grant
    ticket: Ticket

    @property
    def name(self) -> str:
        return self.grant.reserved.lease

    @property
    def model(self) -> ModelKey:
        return self.ticket.model

    def is_of(self, whose: Whose) -> bool:
        of = self.grant.reserved
        return (of.agent, of.session, of.parent) == (whose.agent, whose.account_session, whose.parent)


class Desk:
    """All leases of one policy process."""

    def __init__(self, budgets: Budgets, limits: Mapping[str, int], path: Path,
                 clock: Callable[[], float] = time.time) -> None:  # fmt: skip
        """`limits`: provider to `concurrency`. `path`: the health file."""
        self._budgets, self._path, self._clock = budgets, path, clock
        self._slots = Slots(limits)
        self._cooldowns = Cooldowns(health.load(path), clock())
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._budget_waiters: set[asyncio.Future[None]] = set()
        self._open: dict[str, asyncio.Task[object]] = {}
        """By the prompt's call: one lease at a time for each."""
        self._left_behind = {
            name: Held(Grant(reserved), self._slots.hold((reserved.provider, reserved.model)))
            for name, reserved in budgets.open.items()
        }
        """Leases of a policy process that is gone, until their holders take them up."""
        self._closing = False

    async def lease(self, request: LeaseCall, body: LeaseRequest) -> LeaseResult:
        """Not granted while the model is cooling down, or when the budget has no room. That the agent may
        call the model at all was decided at the hop AUTHORIZE."""
        task = self._admit(request.parent_call)
        try:
            held = self._take_up(request, body) if body.holding else await self._granted(request, body)
            return held if isinstance(held, LeaseResult) else await self._hold(request, held)
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

    # --- until it is granted ---------------------------------------------------------------------

    async def _granted(self, request: LeaseCall, body: LeaseRequest) -> Held | LeaseResult:
        model = (body.provider, body.model)
        whose = _whose(request)
        try:
            while True:
                if cooling := self._cooling(request, model):
                    return cooling
                if not self._budgets.fits(whose, model, body.input_tokens):
                    await self._wait_for_budget(request)
                elif held := await self._slot(request, whose, model, body.input_tokens):
                    return held
        except OverBudget as error:
            request.outcome.model, request.outcome.error = ModelUse("denied", "over_budget"), str(error)[:256]
            return LeaseResult(granted=False, over_budget=True, reason=str(error))

    async def _slot(
        self, request: LeaseCall, whose: Whose, model: ModelKey, input_tokens: int
    ) -> Held | None:
        """A slot with the budget for it; None if the model cools down or the budget went away meanwhile."""
        ticket, grant = self._slots.enter(model), None
        try:
            while not ticket.granted and not self._cooling(request, model):
                await self._wait(request, ticket)
            if not self._cooling(request, model):
                grant = self._budgets.reserve(request.call_name, whose, model, input_tokens)
            return Held(grant, ticket) if grant else None
        finally:
            if grant is None:
                self._leave(ticket)

    async def _wait(self, request: LeaseCall, ticket: Ticket) -> None:
        """Until the ticket is granted, or its model cools down."""
        waiter = self._waiters[ticket] = asyncio.get_running_loop().create_future()
        try:
            await request.send(LeaseItem("waiting", self._slots.ahead(ticket)))
            await waiter
        finally:
            del self._waiters[ticket]

    async def _wait_for_budget(self, request: LeaseCall) -> None:
        """Until some call has settled."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._budget_waiters.add(waiter)
        try:
            await request.send(LeaseItem("waiting", waiting_for="budget"))
            await waiter
        finally:
            self._budget_waiters.discard(waiter)

    def _cooling(self, request: LeaseCall, model: ModelKey) -> LeaseResult | None:
        left = self._cooldowns.left_s(model, self._clock())
        if not left:
            return None
        reason = f"cooling down after a rate limit, {left:.0f} s to go"
        request.outcome.model, request.outcome.error = ModelUse("cooling", "rate_limited"), reason
        return LeaseResult(granted=False, cooling_s=left, reason=reason)

    def _take_up(self, request: LeaseCall, body: LeaseRequest) -> Held:
        """The lease that was lost with the last policy process. Only for the prompt it was granted to:
        a worker in hostile hands gets no slot past the line by inventing one, and can't spoil another's
        (`test_a_lease_is_taken_up_by_its_own_prompt_alone`)."""
        held = self._left_behind.get(body.holding)
        if held is None or not held.is_of(_whose(request)) or held.model != (body.provider, body.model):
            raise NotFound(f"no lease {body.holding!r} waits to be taken up by this prompt")
        return self._left_behind.pop(body.holding)

    # --- while it is held ------------------------------------------------------------------------

    async def _hold(self, request: LeaseCall, held: Held) -> LeaseResult:
        """Until it is reported. Whatever else ends it: charged as reserved."""
        report: LeaseReport | None = None
        try:
            request.open_upstream()
            grant = held.grant
            await request.send(LeaseItem("granted", lease=held.name, max_tokens=grant.max_tokens,
                                         warning=grant.warning))  # fmt: skip
            report = await _reported(request)
        except asyncio.CancelledError:
            if self._closing:
                self._left_behind[held.name] = held  # for the next process; the ledger has it
            raise
        finally:
            if report is not None:
                self._note(request, held.model, report)  # first, so that nobody gets the slot in vain
            if held.name not in self._left_behind:
                self._settle(request, held, report)
        return LeaseResult(granted=True, cooling_s=self._cooldowns.left_s(held.model, self._clock()))

    def _settle(self, request: LeaseCall | None, held: Held, report: LeaseReport | None) -> None:
        amount = self._budgets.settle(held.name, report)
        if report is None:
            reserved = held.grant.reserved
            told = {"lease": held.name, "agent": reserved.agent, "session": reserved.session}
            log.warning("nobody reported what a model call used: %d tokens are charged, as reserved",
                        amount.tokens, extra=told)  # fmt: skip
        if request is not None:
            request.outcome.model = _use(report, amount, self._budgets.priced(held.model))
            request.outcome.error = _error(report)
        self._leave(held.ticket)
        for waiter in self._budget_waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _leave(self, ticket: Ticket) -> None:
        for granted in self._slots.leave(ticket):
            self._wake(granted)

    def _wake(self, ticket: Ticket) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _note(self, request: LeaseCall, model: ModelKey, report: LeaseReport) -> None:
        if not self._cooldowns.note(model, report, self._clock()):
            return
        active = self._cooldowns.active(self._clock())
        health.save(self._path, active)
        told = {"model": "/".join(model), "agent": request.agent, "reported_by": request.src}
        log.warning("cooling down for %.0f s", active[model] - self._clock(), extra=told)
        for ticket in self._slots.waiting(model):
            self._wake(ticket)

    # --- the end of a process --------------------------------------------------------------------

    def give_up_left_behind(self) -> None:
        """Whoever held these leases is gone, too."""
        left, self._left_behind = self._left_behind, {}
        for held in left.values():
            self._settle(None, held, None)

    async def close(self) -> None:
        """End every lease: their holders ask the next policy process, or finish without."""
        self._closing = True
        for task in list(self._open.values()):
            task.cancel()


async def _reported(request: LeaseCall) -> LeaseReport | None:
    async for item in request.items():
        try:
            return _report.decode(item)
        except DECODE_ERRORS as error:
            raise Malformed(f"policy.lease: report: {error}") from None
    return None


def _whose(request: LeaseCall) -> Whose:
    return Whose(request.agent, request.session, request.parent_call)


def _use(report: LeaseReport | None, amount: Amount, priced: bool) -> ModelUse:
    cost = amount.nano if priced else None
    if report is None:
        return ModelUse("unreported", cost_nano=cost)
    used = report.usage
    use = ModelUse(report.outcome, report.kind, report.status, cost_nano=cost)
    for name in COUNTED if used else ():
        setattr(use, name, getattr(used, name))
    return use


def _error(report: LeaseReport | None) -> str:
    if report is None:
        return "nobody reported how the call went"
    status = f" ({report.status})" if report.status else ""
    return f"{report.kind or 'failed'}{status}" if report.outcome == "failed" else ""
