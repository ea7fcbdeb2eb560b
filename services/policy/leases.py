"""Decides who may call a model now: the line for a provider's slots, and models that are cooling down.

Pure: time comes in as `now` (seconds since the epoch, as cooldowns outlive the process). Rules and
numbers are the seed's (Model Fallback, Provider Concurrency Limits).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from beige.messages.policy import LeaseReport
from beige.money import ModelKey

HARD_COOLDOWN_S = 300.0
"""After HTTP 429 without `retry-after`."""
SOFT_COOLDOWN_S = 60.0
"""After an error that only reads like a rate limit."""
MAX_COOLDOWN_S = 24 * 3600.0
"""However long a provider (or a worker in hostile hands) asks for."""


def cooldown_s(report: LeaseReport) -> float:
    """Seconds the reported model must not be called. Only rate limits cool a model down for all;
    "overloaded", lost connections and timeouts don't: the next session may have luck."""
    if report.outcome != "failed" or report.kind != "rate_limited":
        return 0.0
    if report.retry_after_s is not None:
        return min(report.retry_after_s, MAX_COOLDOWN_S)
    return HARD_COOLDOWN_S if report.status == 429 else SOFT_COOLDOWN_S


class Cooldowns:
    """Until when each model is cooling down."""

    def __init__(self, until: Mapping[ModelKey, float], now: float) -> None:
        """`until` is from a file, so anything: what is over, or too far away, is dropped."""
        self._until = {model: at for model, at in until.items() if now < at <= now + MAX_COOLDOWN_S}

    def left_s(self, model: ModelKey, now: float) -> float:
        """Seconds until `model` may be called; 0: now."""
        return max(0.0, self._until.get(model, 0.0) - now)

    def note(self, model: ModelKey, report: LeaseReport, now: float) -> bool:
        """True if the report makes the model cool down, or for longer than before."""
        until = now + cooldown_s(report)
        if until <= max(now, self._until.get(model, 0.0)):
            return False
        self._until[model] = until
        return True

    def active(self, now: float) -> dict[ModelKey, float]:
        """What is worth keeping."""
        self._until = {model: at for model, at in self._until.items() if at > now}
        return dict(self._until)


@dataclass(eq=False)
class Ticket:
    """One call that holds a slot of its model's provider, or waits for one."""

    model: ModelKey
    granted: bool = False


@dataclass
class _Line:
    limit: int
    held: int = 0
    waiting: deque[Ticket] = field(default_factory=deque)


class Slots:
    """The slots of each provider, and who waits for them: first come, first served, over all models,
    sessions and workers."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        """`limits`: calls in flight at once, per provider; below 1, or not named: no limit."""
        self._lines = {name: _Line(limit) for name, limit in limits.items() if limit > 0}

    def enter(self, model: ModelKey) -> Ticket:
        """A new ticket: granted, or at the end of the line."""
        ticket, line = Ticket(model), self._lines.get(model[0])
        if line is None:
            ticket.granted = True
            return ticket
        line.waiting.append(ticket)
        _grant(line)
        return ticket

    def hold(self, model: ModelKey) -> Ticket:
        """A slot that is taken already, even if that is one more than there are: nobody gets another
        until enough are free."""
        ticket, line = Ticket(model, granted=True), self._lines.get(model[0])
        if line is not None:
            line.held += 1
        return ticket

    def ahead(self, ticket: Ticket) -> int:
        """Waiting calls that come before this one."""
        line = self._lines.get(ticket.model[0])
        return line.waiting.index(ticket) if line is not None and ticket in line.waiting else 0

    def leave(self, ticket: Ticket) -> list[Ticket]:
        """Give the slot, or the place in the line, back. The tickets that are granted by it."""
        line = self._lines.get(ticket.model[0])
        if line is None:
            return []
        if ticket.granted:
            ticket.granted = False
            line.held -= 1
        elif ticket in line.waiting:
            line.waiting.remove(ticket)
        return _grant(line)

    def waiting(self, model: ModelKey) -> list[Ticket]:
        """Tickets in line for this model: to be sent away when it cools down."""
        line = self._lines.get(model[0])
        return [ticket for ticket in line.waiting if ticket.model == model] if line else []


def _grant(line: _Line) -> list[Ticket]:
    granted: list[Ticket] = []
    while line.waiting and line.held < line.limit:
        ticket = line.waiting.popleft()
        ticket.granted = True
        line.held += 1
        granted.append(ticket)
    return granted
