"""Decides whether a model call fits into the budgets, and what it is charged. Pure.

A call reserves what it may use at most: its input as estimated, and its longest answer. Afterwards it is
charged what was reported. So what is used and reserved together never passes a limit, whatever runs at
once; only a call that uses more than it reserved can overshoot, by that difference
(`test_no_limit_is_passed_by_more_than_calls_used_beyond_what_they_reserved`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from beige import money
from beige.messages.policy import LeaseReport
from beige.money import Price

Scope = Literal["session", "day", "total", "house"]
SHORTEST_ANSWER = 1024
"""Tokens. If there is not even room for that, the call is refused: a cut answer costs and helps nobody."""
UNCHARGED = frozenset({"rate_limited", "overloaded", "auth", "billing", "bad_request", "context_too_long",
                       "connection"})  # fmt: skip
"""Failures in which the provider did no work: it refused, or was never reached."""


class Account(NamedTuple):
    scope: Scope
    agent: str = ""
    """"" for the house, which is all agents."""
    session: str = ""
    day: str = ""
    """`2026-03-05`, UTC; "" for accounts that are never reset."""


@dataclass(frozen=True, slots=True)
class Amount:
    tokens: int = 0
    nano: int = 0
    """Nano-dollars."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.nano + other.nano)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.nano - other.nano)


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class Limit:
    tokens: int | None = None
    nano: int | None = None
    soft: float = 1.0


@dataclass(frozen=True, slots=True)
class Standing:
    """One limited account as it is now."""

    account: Account
    limit: Limit
    used: Amount
    reserved: Amount


@dataclass(frozen=True, slots=True)
class Ask:
    """What a call may use at most."""

    input_tokens: int
    answer_tokens: int
    """Its longest answer, by its model's settings."""
    price: Price | None
    """None counts as free: no limit in money is accepted with such a model (`config.budget_checks`)."""

    def amount(self, answer_tokens: int) -> Amount:
        pico = self.input_tokens * self._input_price + answer_tokens * self._output_price
        return Amount(self.input_tokens + answer_tokens, -(-pico // 1000))

    def longest(self, free: Amount, limit: Limit) -> int:
        """Tokens of the longest answer that `free` has room for; may be negative."""
        longest = self.answer_tokens
        if limit.tokens is not None:
            longest = min(longest, free.tokens - self.input_tokens)
        if limit.nano is not None:
            left = free.nano * 1000 - self.input_tokens * self._input_price
            if left < 0:
                return -1
            if self._output_price:
                longest = min(longest, left // self._output_price)
        return longest

    @property
    def _input_price(self) -> int:
        return self.price.dearest_input if self.price else 0

    @property
    def _output_price(self) -> int:
        return self.price.output if self.price else 0


@dataclass(frozen=True, slots=True)
class Fits:
    amount: Amount
    """To reserve."""
    max_tokens: int | None
    """The answer must not be longer; None: as the model's settings say."""


@dataclass(frozen=True, slots=True)
class Wait:
    """It may fit once calls under way have settled."""


@dataclass(frozen=True, slots=True)
class Refuse:
    standing: Standing
    """The limit that is reached."""
    needed: Amount
    """By the shortest useful answer."""


def fit(ask: Ask, standings: list[Standing]) -> Fits | Wait | Refuse:
    """What is used for good refuses, what is only reserved makes wait. With nothing reserved it is never
    `Wait`, so a wait ends."""
    shortest = min(SHORTEST_ANSWER, ask.answer_tokens)
    longest = ask.answer_tokens
    for standing in standings:
        room = ask.longest(amount_of(standing.limit) - standing.used, standing.limit)
        if room < shortest:
            return Refuse(standing, ask.amount(shortest))
        longest = min(longest, room)
    for standing in standings:
        free = amount_of(standing.limit) - standing.used - standing.reserved
        if ask.longest(free, standing.limit) < longest:
            return Wait()
    return Fits(ask.amount(longest), longest if longest < ask.answer_tokens else None)


def charge(report: LeaseReport | None, reserved: Amount, price: Price | None) -> Amount:
    """What a call that is over is charged. None: nobody reported.

    Never nothing without a reason: who doesn't report, or reports an answer that used nothing, pays all
    that was reserved. Stops an llm worker in hostile hands from calling for free by keeping silent; one
    that lies about a real call can't be caught here (docs/security.md).
    """
    if report is None:
        return reserved
    counted = {name: getattr(report.usage, name) for name in money.COUNTED} if report.usage else {}
    used = Amount(money.tokens(counted), price.cost(counted) if price else 0)
    if used.tokens:
        return used
    return NOTHING if report.outcome == "failed" and report.kind in UNCHARGED else reserved


def accounts_of(agent: str, session: str, day: str) -> tuple[Account, ...]:
    """All that a call is charged to."""
    return (
        Account("session", agent, session),
        Account("day", agent, day=day),
        Account("total", agent),
        Account("house", day=day),
    )


def day_of(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def amount_of(limit: Limit) -> Amount:
    return Amount(limit.tokens or 0, limit.nano or 0)


def resets(account: Account) -> str:
    """When the account begins anew, ISO 8601; "" if never."""
    if not account.day:
        return ""
    return f"{datetime.fromisoformat(account.day).date() + timedelta(days=1)}T00:00:00Z"


Limits = Mapping[str, Mapping[Scope, Limit]]
"""Agent to its limits; "" to the house's."""


def limit_of(limits: Limits, account: Account) -> Limit | None:
    return limits.get(account.agent, {}).get(account.scope)
