"""Knows which calls the log has opened and closed, so that nothing is written twice. Pure.

Memory is bounded: open calls by `MAX_OPEN` (the broker admits no more), closed ones by the newest
`MAX_CLOSED` (a hop is dispatched again within seconds, not after that many calls).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from beige.auditlog import Record
from beige.errors import Denied, Overloaded

MAX_OPEN = 20_000
MAX_CLOSED = 100_000


@dataclass(frozen=True, slots=True)
class OpenCall:
    record: Record
    """The started record."""
    since: float
    """Monotonic seconds at which it was opened, or read back."""


class Ledger:
    def __init__(self) -> None:
        self.open: dict[str, OpenCall] = {}
        self._closed: dict[str, str] = {}
        """Call → digest of its request ("" if unknown), oldest first."""

    def admit(self, call: str, digest: str, allowed: bool) -> bool:
        """May this call be opened? False: it already is recorded, with the same request.

        Denied when the name was used for another request, or for a call that is over: a broker in
        hostile hands must not get a second receipt under an old record
        (`test_a_recorded_name_gives_no_receipt_for_another_request`).
        """
        if known := self.open.get(call):
            if known.record.digest == digest:
                return False
            raise Denied(f"call {call} is recorded with another request")
        if call in self._closed:
            if not allowed and self._closed[call] == digest:
                return False
            raise Denied(f"call {call} is already finished")
        if len(self.open) >= MAX_OPEN:
            raise Overloaded(f"more than {MAX_OPEN} calls are open")
        return True

    def is_closed(self, call: str) -> bool:
        return call in self._closed

    def opened(self, record: Record, since: float) -> None:
        self.open[record.id] = OpenCall(record, since)

    def closed(self, call: str, digest: str = "") -> None:
        opening = self.open.pop(call, None)
        self._closed[call] = digest or (opening.record.digest if opening else "")
        if len(self._closed) > MAX_CLOSED:
            del self._closed[next(iter(self._closed))]

    def not_opened(self, call: str) -> None:
        """Its started record could not be written."""
        self.open.pop(call, None)

    def not_closed(self, call: str, opening: OpenCall | None) -> None:
        """Its finished record could not be written: as before, open if it was."""
        self._closed.pop(call, None)
        if opening:
            self.open[call] = opening

    def of_other_epochs(self, epoch: int) -> list[Record]:
        """Open calls of a broker that is gone; nobody will report how they ended."""
        prefix = f"{epoch:08x}-"
        return [known.record for call, known in self.open.items() if not call.startswith(prefix)]


def rebuild(newest_first: Iterable[Record], since: float) -> Ledger:
    """The ledger a log implies, from its records read backwards (as many as the caller cares for)."""
    finished: dict[str, str] = {}
    opened: dict[str, Record] = {}
    for record in newest_first:
        if record.phase == "finished":
            finished.setdefault(record.id, record.digest)
        elif record.id in finished:
            finished[record.id] = record.digest
        else:
            opened.setdefault(record.id, record)
    ledger = Ledger()
    for call, digest in list(finished.items())[:MAX_CLOSED][::-1]:
        ledger.closed(call, digest)
    for record in reversed(opened.values()):
        ledger.opened(record, since)
    return ledger
