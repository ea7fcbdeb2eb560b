"""Keeps the budgets: limits, ledger and file together. The desk asks before a call and tells after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from beige.errors import Denied, Unavailable
from beige.messages.policy import BudgetLine, BudgetReport, LeaseReport
from beige.money import ModelKey, Price
from services.policy.budget import (
    Account,
    Amount,
    Ask,
    Fits,
    Limits,
    Refuse,
    Standing,
    accounts_of,
    charge,
    day_of,
    fit,
    limit_of,
    resets,
)
from services.policy.ledger import Reserved, Settled
from services.policy.ledger_file import LedgerFile
from services.policy.wording import denial, warning

log = logging.getLogger("policy")


@dataclass(frozen=True)
class Whose:
    """The call a lease is for, on the broker's word."""

    agent: str
    session: str
    parent: str

    @property
    def account_session(self) -> str:
        """A prompt without a session's name is a session of its own."""
        return self.session or f"call {self.parent}"


@dataclass(frozen=True)
class Grant:
    reserved: Reserved
    max_tokens: int | None = None
    warning: str = ""


class OverBudget(Denied):
    """The budget has no room for the call."""


class Budgets:
    def __init__(self, file: LedgerFile, limits: Limits, answers: Mapping[str, Mapping[ModelKey, int]],
                 prices: Mapping[ModelKey, Price], clock: Callable[[], float]) -> None:  # fmt: skip
        """`answers`: agent to its models and their longest answers in tokens."""
        self._file, self._limits, self._answers = file, limits, answers
        self._prices, self._clock = prices, clock
        self._unwritten: dict[str, Settled] = {}
        """Settlements the disk refused: what they reserved stays reserved until it takes them."""

    @property
    def open(self) -> Mapping[str, Reserved]:
        """Leases that are not settled, by name."""
        return self._file.ledger.open

    def fits(self, whose: Whose, model: ModelKey, input_tokens: int) -> bool:
        """Is there room now? Raises OverBudget if there is none however long one waits."""
        return self._fit(whose, model, input_tokens) is not None

    def reserve(self, lease: str, whose: Whose, model: ModelKey, input_tokens: int) -> Grant | None:
        """None if there is no room now. Raises as `fits`; Unavailable if it can't be written down."""
        found = self._fit(whose, model, input_tokens)
        if found is None:
            return None
        fits, standings = found
        reserved = Reserved(
            lease, whose.agent, whose.account_session, whose.parent, day_of(self._clock()), *model,
            fits.amount.tokens, fits.amount.nano,
        )  # fmt: skip
        self._file.append(reserved)
        return Grant(reserved, fits.max_tokens, warning(standings))

    def settle(self, lease: str, report: LeaseReport | None) -> Amount:
        """What the lease is charged. None: its holder is gone and said nothing."""
        opened = self.open[lease]
        price = self._prices.get((opened.provider, opened.model))
        amount = charge(report, opened.amount, price)
        settled = Settled(lease, amount.tokens, amount.nano, report is not None)
        try:
            self._file.append(settled)
        except Unavailable as error:
            log.error("%s", error)
            self._unwritten[lease] = settled
        return amount

    async def tend(self) -> None:
        """Write what is owed, and sync. Every second."""
        for lease, settled in list(self._unwritten.items()):
            self._file.append(settled)
            del self._unwritten[lease]
        await self._file.tend(day_of(self._clock()))

    def report(self, agent: str, session: str) -> BudgetReport:
        """The accounts of `agent`, or of all agents."""
        agents = [agent] if agent else sorted(self._answers)
        lines = [self._line(account) for account in self._shown(agents, session)]
        models = {model for name in agents for model in self._answers.get(name, {})}
        return BudgetReport(lines, sorted("/".join(model) for model in models - self._prices.keys()))

    def priced(self, model: ModelKey) -> bool:
        return model in self._prices

    def close(self) -> None:
        self._file.close()

    def _fit(self, whose: Whose, model: ModelKey, input_tokens: int) -> tuple[Fits, list[Standing]] | None:
        longest = self._answers[whose.agent][model]
        standings = self._standings(whose)
        found = fit(Ask(input_tokens, longest, self._prices.get(model)), standings)
        if isinstance(found, Refuse):
            raise OverBudget(denial(found))
        return (found, standings) if isinstance(found, Fits) else None

    def _standings(self, whose: Whose) -> list[Standing]:
        ledger = self._file.ledger
        accounts = accounts_of(whose.agent, whose.account_session, day_of(self._clock()))
        limited = [(account, limit_of(self._limits, account)) for account in accounts]
        return [
            Standing(account, limit, ledger.used(account), ledger.reserved(account))
            for account, limit in limited
            if limit is not None
        ]

    def _shown(self, agents: Iterable[str], session: str) -> list[Account]:
        today = day_of(self._clock())
        shown = [Account("house", day=today)]
        for agent in agents:
            shown += [Account("day", agent, day=today), Account("total", agent)]
            limited = "session" in self._limits.get(agent, {})
            shown += [
                account
                for account in self._file.ledger.accounts()
                if account.scope == "session" and account.agent == agent
                and (account.session == session or (limited and not session))
            ][-MOST_SESSIONS:]  # fmt: skip
        return shown

    def _line(self, account: Account) -> BudgetLine:
        used, reserved = self._file.ledger.used(account), self._file.ledger.reserved(account)
        limit = limit_of(self._limits, account)
        return BudgetLine(
            account.scope, account.agent, account.session, used.tokens, used.nano, reserved.tokens,
            reserved.nano, limit.tokens if limit else None, limit.nano if limit else None,
            limit.soft if limit else 1.0, resets(account),
        )  # fmt: skip


MOST_SESSIONS = 200
"""Sessions of an agent in one report: those used last."""
