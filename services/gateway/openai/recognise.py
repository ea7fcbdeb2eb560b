"""Decides which session a conversation is, and what of it the agent has not heard yet. Pure.

OpenAI's clients resend the whole history. Each beginning of it has a digest, chained from a root:

    root ── user ──► d1 ── assistant ──► d2 ── user ──► d3 ...      d2 ──► Place(session, turns=1)

After a turn the digest of all that was said is kept with its place: where it stands in which session. The
next request is recognised by its longest beginning that has one; only what follows is new. A session that
has gone on since (an edited or repeated message, or another door) is forked there, so that the agent knows
what the client shows, and nothing that was said later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.openai.requests import Said

MAX_QUOTED = 128 * 1024
"""Most characters of a history that is quoted; the oldest are left out."""


@dataclass(frozen=True)
class Place:
    """Where a conversation stands."""

    session: str
    turns: int
    """Of the session, up to here."""
    system: bytes = b""
    """Digest of the client's instructions that the session was told last."""
    cut: bool = False
    """The last turn ended without its whole answer reaching the client."""


@dataclass(frozen=True)
class Plan:
    place: Place | None
    """Where to go on; None: nowhere, a new session begins."""
    quoted: tuple[Said, ...]
    """What the client says was said, and this agent did not hear."""
    fresh: tuple[Said, ...]
    """The users' messages at the end: the prompt."""


def owner(token_digest: str, agent: str) -> bytes:
    """The root of all of one token's conversations with one agent. Stops whoever knows, or guesses, what
    another token's conversation says, or its ids, from reaching it: his own root leads elsewhere
    (`tests/attacks/test_openai_sessions.py`)."""
    return _digest(b"owner", token_digest.encode(), agent.encode())


def named(root: bytes, kind: str, name: str) -> bytes:
    """The digest of a name given to a session (`kind`: key, response, session)."""
    return _digest(b"named", root, kind.encode(), name.encode("utf-8", "surrogatepass"))


def chain(root: bytes, said: Sequence[Said]) -> list[bytes]:
    """The digest of each beginning of the history: the n-th is of the first n + 1 messages. White space
    around a message doesn't count: clients trim it."""
    found, last = [], root
    for one in said:
        last = _digest(b"said", last, one.role.encode(), one.text.strip().encode("utf-8", "surrogatepass"))
        found.append(last)
    return found


def plan(said: Sequence[Said], known: Sequence[Place | None]) -> Plan:
    """`known`: the place of each beginning, as in `chain`. A beginning that ends in a user's message has one
    only if its answer was cut. If something follows, that turn is gone on from, and what the client shows of
    the answer is passed over; the same request again is asked anew, like any repeated message."""
    place, begin = None, 0
    for number in reversed(range(len(said) - 1)):
        if (place := known[number]) is not None:
            begin = number + 1
            if place.cut and said[begin].role == "assistant":
                begin += 1
            break
    fresh = max(_last_users(said), begin)
    return Plan(place, tuple(said[begin:fresh]), tuple(said[fresh:]))


def stranger(said: Sequence[Said]) -> Plan:
    """Of a history nothing of which is known."""
    return plan(said, [None] * len(said))


def instructions(system: str) -> bytes:
    """What `Place.system` holds; empty for none."""
    return _digest(b"system", system.encode("utf-8", "surrogatepass"))[:16] if system else b""


def prompt(plan: Plan, system: str) -> str:
    """What the agent is told. `system`: the client's instructions, if it has to be told them. They have the
    rank of the user's own words: the agent's system prompt is its operator's alone."""
    parts = []
    if system:
        parts.append(f"[Instructions of the program through which this conversation comes]\n{system}\n[End]")
    if plan.quoted:
        parts.append(f"[Said before, as that program tells it]\n{_quoted(plan.quoted)}\n[End]")
    return "\n\n".join([*parts, *(one.text for one in plan.fresh if one.text.strip())])


def _quoted(said: Sequence[Said]) -> str:
    text = "\n\n".join(f"{one.role}: {one.text}" for one in said)
    return text if len(text) <= MAX_QUOTED else f"... {text[-MAX_QUOTED:]}"


def _last_users(said: Sequence[Said]) -> int:
    at = len(said)
    while at and said[at - 1].role == "user":
        at -= 1
    return at


def _digest(*parts: bytes) -> bytes:
    """Of parts, each with its length before it: no two lists of parts are the same bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()
