"""Decides what is answered to a prompt that was begun before: its process died, and the broker gave it to
another one. Pure; nothing of it is run a second time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from beige import money
from beige.errors import Denied, Failed, PeerLost
from beige.messages.llm import PromptResult
from services.llm.conversation import AnyEntry, Assistant, Compaction, Hook, Prompt, ToolResult, TurnEnd
from services.llm.hooks.chain import said
from services.llm.tools import cut
from services.llm.turn.core import ANSWER_LIMIT

INTERRUPTED = (
    "the llm process serving this prompt ended in the middle of the turn: it was interrupted; the session "
    "has what it did, and goes on with the next prompt"
)


def answered_before(session: str, entries: Sequence[AnyEntry], call: str) -> PromptResult | None:
    """The answer that the turn of `call` had come to; None if it has not begun. Failed as it had failed,
    Denied as a hook had refused it, PeerLost if it was interrupted."""
    turn = _turn(entries, call)
    if turn is None:
        return None
    end = next((entry for entry in turn if isinstance(entry, TurnEnd)), None)
    if end is not None and end.outcome == "failed":
        raise Failed(end.error)
    if end is not None and end.outcome == "refused":
        raise Denied(end.error, executed="maybe")
    if end is None or end.outcome not in ("answered", "max_turns"):
        raise PeerLost(INTERRUPTED)
    return _result(session, turn, end)


def _turn(entries: Sequence[AnyEntry], call: str) -> Sequence[AnyEntry] | None:
    """From the prompt up to the next one."""
    begin: int | None = None
    for place, entry in enumerate(entries):
        if not isinstance(entry, Prompt):
            continue
        if begin is not None:
            return entries[begin:place]
        if entry.call == call:
            begin = place
    return None if begin is None else entries[begin:]


def _result(session: str, turn: Sequence[AnyEntry], end: TurnEnd) -> PromptResult:
    spoken = [entry for entry in turn if isinstance(entry, Assistant)]
    usage: Counter[str] = Counter()
    cost: int | None = 0
    for entry in turn:
        if isinstance(entry, Assistant | Compaction):
            usage.update(entry.usage)
            cost = money.total(cost, entry.cost_nano)
    last = spoken[-1] if spoken else None
    heard = [entry for entry in turn[turn.index(last) :] if isinstance(entry, Hook)] if last else []
    stop = last.stop_reason if last and end.outcome == "answered" else end.outcome
    return PromptResult(
        session=session,
        text=cut(said(last.text, heard) if last else "", ANSWER_LIMIT),
        stop_reason=stop,
        model=last.model if last else "",
        scripted=any(entry.scripted for entry in spoken),
        tool_calls=sum(isinstance(entry, ToolResult) for entry in turn),
        usage=dict(usage),
        cost=money.usd(cost),
    )
