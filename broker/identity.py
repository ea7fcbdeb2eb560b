"""Decides for whom a call acts. What the sender's role may not say is refused, never corrected.

Attacker: a process holding another role's bus secret (an llm worker in hostile hands) that wants to
act for an agent it does not serve, or to be believed about a decision (`tests/attacks/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from beige import wire
from beige.wire import Header
from broker.access import GOVERNED, RECEIPT_ROLE, VERDICT_ROLE
from broker.calls import Call, Peer

MAX_OFFENCES_PER_S = 100


class Refusal(Exception):
    """A message that must not become a call. `code` is a `beige.errors` code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True, slots=True)
class Settled:
    """Whose call it is, on the broker's word."""

    agent: str = ""
    session: str = ""
    channel: str = ""
    trace: str = ""
    parent: Call | None = None


def forged(peer: Peer, header: Header) -> str:
    """The name of a field that this sender may not fill, or ''."""
    for name in ("src", "hop", "attempt", "epoch", "call", "parent_call"):
        if getattr(header, name):
            return name
    answering = header.type in (wire.REPLY, wire.ERR)
    if header.verdict and not (answering and peer.role_name == VERDICT_ROLE):
        return "verdict"
    if header.receipt and not (answering and peer.role_name == RECEIPT_ROLE):
        return "receipt"
    return ""


def settle(peer: Peer, header: Header, tokens: Mapping[str, Call]) -> Settled:
    """Agent, session, channel and parent of a new call. Refusal if the sender may not say so."""
    method = f"{header.service}.{header.method}"
    if method not in peer.role.calls:
        raise Refusal("denied", f"role {peer.role_name!r} may not call {method!r}")
    if header.parent:
        settled = _inherit(peer, header)
    elif peer.role.names_agents:
        settled = Settled(header.agent, header.session, header.channel)
    elif peer.role.own_sessions:
        settled = _in_its_channel(header)
    elif peer.role.stamps_agents:
        settled = _stamped(header, tokens)
    elif header.agent or header.session or header.channel:
        raise Refusal("denied", f"role {peer.role_name!r} may not name an agent or session")
    else:
        settled = Settled()
    if header.token and not peer.role.stamps_agents:
        raise Refusal("denied", f"role {peer.role_name!r} may not present a call token")
    if method in GOVERNED and not settled.agent:
        raise Refusal("denied", f"{method!r} needs an agent: name the parent call being served")
    return settled


def _inherit(peer: Peer, header: Header) -> Settled:
    parent = peer.work.get(header.parent)
    if parent is None or not parent.at_executor:
        raise Refusal("denied", "the parent call is not being served by this process")
    of = parent.header
    for name in ("agent", "session", "channel"):
        if getattr(header, name) not in ("", getattr(of, name)):
            raise Refusal("denied", f"{name} is inherited from the parent call and can't be changed")
    return Settled(of.agent, of.session, of.channel, of.trace, parent)


def _in_its_channel(header: Header) -> Settled:
    """Stops a channels process in hostile hands from going on with an operator's conversation, or with one
    channel's in another's name (`tests/attacks/test_channels.py`)."""
    if not header.agent or not header.channel or ":" in header.channel:
        raise Refusal("denied", "a channel names itself, an agent and a session")
    if not header.session.startswith(f"{header.channel}:"):
        raise Refusal("denied", f"a session of channel {header.channel!r} begins with '{header.channel}:'")
    return Settled(header.agent, header.session, header.channel)


def _stamped(header: Header, tokens: Mapping[str, Call]) -> Settled:
    """The bridge names the agent by its socket. A token adds the session it was issued for, if it
    belongs to a live call of that agent; another agent's, a stale or an invented one adds nothing."""
    if header.session or header.channel:
        raise Refusal("denied", "a session comes from a call token, not from the sender")
    parent = tokens.get(header.token) if header.token else None
    if parent is None or parent.header.agent != header.agent:
        return Settled(header.agent)
    of = parent.header
    return Settled(header.agent, of.session, of.channel, of.trace, parent)


def offends(peer: Peer, now: float) -> bool:
    """Note a denied or malformed message; True once there are too many in a second."""
    peer.offences.append(now)
    while peer.offences and now - peer.offences[0] > 1.0:
        peer.offences.popleft()
    return len(peer.offences) > MAX_OFFENCES_PER_S
