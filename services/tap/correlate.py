"""Completes copies: which call, agent and method a message belongs to, and how long it took. Pure.

A message on the wire says only what its receiver needs: a REPLY holds an id, a child CALL its
parent's id. The tap remembers, in bounded memory, the calls it saw on each connection:

    work[peer, id]    CALLs the broker sent to a worker          (the broker's ids)
    asked[peer, id]   CALLs a peer sent to the broker            (that peer's ids)
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from beige import wire
from beige.wire import Header

MAX_CALLS = 20_000
OVER = (wire.REPLY, wire.ERR)
CARRIES_A_CALL = (wire.CALL, wire.ITEM, wire.REPLY, wire.ERR, wire.CREDIT, wire.CANCEL)


@dataclass(slots=True)
class Known:
    """What is known of a call on one connection."""

    service: str = ""
    method: str = ""
    agent: str = ""
    session: str = ""
    channel: str = ""
    src: str = ""
    hop: str = ""
    call: str = ""
    parent: str = ""
    since_ns: int = 0


Key = tuple[str, int]
NOTHING = Known()


class Correlator:
    def __init__(self) -> None:
        self._work: OrderedDict[Key, Known] = OrderedDict()
        self._asked: OrderedDict[Key, Known] = OrderedDict()

    def place(self, direction: str, peer: str, header: Header, now_ns: int) -> tuple[Known, float | None]:
        """The call a message belongs to, and for an answer its latency in milliseconds."""
        if header.type not in CARRIES_A_CALL:
            return NOTHING, None
        side = self._work if _worker_side(direction, header) else self._asked
        key = (peer, header.id)
        if header.type == wire.CALL:
            known = self._called(direction, peer, header, now_ns)
            _remember(side, key, known)
            return known, None
        found = side.pop(key, None) if header.type in OVER else side.get(key)
        known = found or Known(call=header.call)
        if header.call and not known.call:
            known.call = header.call
        latency = (now_ns - found.since_ns) / 1e6 if found and header.type in OVER else None
        return known, latency

    def _called(self, direction: str, peer: str, header: Header, now_ns: int) -> Known:
        known = Known(
            header.service, header.method, header.agent, header.session, header.channel, header.src,
            wire.HOP_NAMES[header.hop] if header.hop < len(wire.HOP_NAMES) else str(header.hop),
            header.call, header.parent_call, now_ns,
        )  # fmt: skip
        if direction == "in":
            # The broker has not completed this header yet: what a sender puts into the broker's
            # fields means nothing, and agent and session come from the call it is serving.
            known.src, known.hop, known.call, known.parent = peer, "", "", ""
            cause = self._work.get((peer, header.parent)) if header.parent else None
            if cause:
                known.agent, known.session, known.channel = cause.agent, cause.session, cause.channel
                known.parent = cause.call
        return known


def _worker_side(direction: str, header: Header) -> bool:
    """Is `peer` the worker of this call, rather than its caller?"""
    if header.type in (wire.CALL, wire.CANCEL):
        return direction == "out"
    if header.type in OVER:
        return direction == "in"
    return bool(header.flags & wire.TO_WORKER) == (direction == "out")


def _remember(side: OrderedDict[Key, Known], key: Key, known: Known) -> None:
    side[key] = known
    if len(side) > MAX_CALLS:
        side.popitem(last=False)
