"""Knows what was used and what is reserved, from a list of events. Pure.

The same events, in the same order, make the same ledger: as they happen, and when the file is read again
after a crash. A settlement that comes twice counts once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct

from services.policy.budget import NOTHING, Account, Amount, accounts_of

MAX_SESSIONS = 20_000
"""Sessions whose account is kept; the one not used for longest is forgotten first."""
KEEP_DAYS = 62


class Event(Struct, tag_field="type", frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Reserved(Event, tag="reserved", frozen=True):
    """A lease was granted. Written before its holder learns of it."""

    lease: str
    agent: str
    session: str
    parent: str
    """The prompt's call: only it may take the lease up again after a restart of policy."""
    day: str
    provider: str
    model: str
    tokens: int
    nano: int

    @property
    def amount(self) -> Amount:
        return Amount(self.tokens, self.nano)

    @property
    def accounts(self) -> tuple[Account, ...]:
        return accounts_of(self.agent, self.session, self.day)


class Settled(Event, tag="settled", frozen=True):
    """The lease is over, and this is what it is charged. Written before its holder learns of it."""

    lease: str
    tokens: int
    nano: int
    reported: bool = True
    """False: nobody said what was used, so it is what was reserved."""


class Used(Event, tag="used", frozen=True):
    """The sum of what an account was charged before the file was written anew."""

    scope: str
    agent: str
    session: str
    day: str
    tokens: int
    nano: int


AnyEvent = Reserved | Settled | Used


class Ledger:
    """All accounts, and the leases that are not settled."""

    def __init__(self) -> None:
        self.open: dict[str, Reserved] = {}
        self._used: dict[Account, Amount] = {}
        self._reserved: defaultdict[Account, Amount] = defaultdict(Amount)

    def used(self, account: Account) -> Amount:
        return self._used.get(account, NOTHING)

    def reserved(self, account: Account) -> Amount:
        return self._reserved.get(account, NOTHING)

    def accounts(self) -> Iterator[Account]:
        return iter(dict.fromkeys([*self._used, *self._reserved]))

    def apply(self, event: AnyEvent) -> None:
        match event:
            case Reserved():
                if event.lease not in self.open:
                    self.open[event.lease] = event
                    self._reserve(event, +1)
            case Settled():
                if (opened := self.open.pop(event.lease, None)) is not None:
                    self._reserve(opened, -1)
                    for account in opened.accounts:
                        self._charge(account, Amount(event.tokens, event.nano))
            case Used():
                account = Account(event.scope, event.agent, event.session, event.day)  # type: ignore[arg-type]
                self._used[account] = Amount(event.tokens, event.nano)

    def summary(self, today: str) -> list[AnyEvent]:
        """Events that make this ledger again, without accounts that are too old to matter."""
        sessions = [account for account in self._used if account.scope == "session"]
        forgotten = set(sessions[: max(0, len(sessions) - MAX_SESSIONS)])
        days = sorted({account.day for account in self._used if account.day and account.day <= today})
        forgotten |= {account for account in self._used if account.day in days[:-KEEP_DAYS]}
        kept = [
            Used(*account, used.tokens, used.nano)
            for account, used in self._used.items()
            if account not in forgotten
        ]
        return [*kept, *self.open.values()]

    def _reserve(self, event: Reserved, sign: int) -> None:
        for account in event.accounts:
            amount = self._reserved[account]
            changed = amount + event.amount if sign > 0 else amount - event.amount
            self._reserved[account] = changed
            if changed == NOTHING:
                del self._reserved[account]

    def _charge(self, account: Account, amount: Amount) -> None:
        """The account moves to the end: the order is that of last use."""
        self._used[account] = self._used.pop(account, NOTHING) + amount
