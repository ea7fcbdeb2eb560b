"""What the tap publishes to operators and what recordings hold: one event per message on the bus.

Published by `services/tap` on `Home.tap_endpoint` as `[topic, event]`; the topic is the agent's name,
or `-`. Topics that begin with `+` are no agents:

    +state   answered to each subscription, once the broker copies traffic: the tap's counters
    +body    nothing is published under it; subscribing to it asks for (redacted) bodies
"""

from __future__ import annotations

from typing import Any

import msgspec

NO_AGENT = "-"
STATE = b"+state"
WANT_BODIES = b"+body"


class TapEvent(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One copy. What a message doesn't say itself (a reply names no method) is filled in from the call
    it belongs to, as far as the tap saw that."""

    seq: int
    """Of the tap, over everything it published."""
    topic_seq: int
    """Of the tap, over this topic: a gap is a copy this subscriber lost."""
    lost: int = 0
    """Copies that never reached the tap since it listens (the broker's drops)."""
    wall_ns: int
    mono_ns: int
    dir: str
    """`in`: from `peer` to the broker; `out`: from the broker to `peer`."""
    peer: str
    type: str
    id: int = 0
    """Of the call, on this peer's connection."""
    service: str = ""
    method: str = ""
    agent: str = ""
    session: str = ""
    channel: str = ""
    src: str = ""
    hop: str = ""
    call: str = ""
    parent: str = ""
    trace: str = ""
    size: int = 0
    """Bytes of the body."""
    latency_ms: float | None = None
    """On REPLY and ERR: since the CALL it answers passed the broker."""
    attempt: int = 0
    ttl_ms: int = 0
    credit: int = 0
    code: str = ""
    maybe: bool = False
    """The call may have been executed."""
    end: bool = False
    error: str = ""
    exit_code: int | None = None
    output_bytes: int | None = None
    body: dict[str, Any] | None = None
    """Redacted; only when a subscriber wants bodies."""


class TapState(msgspec.Struct, kw_only=True):
    epoch: int
    """The broker's: another one means that it was restarted."""
    on: bool
    bodies: bool
    seq: int
    lost: int


encode = msgspec.msgpack.Encoder().encode
decode_event = msgspec.msgpack.Decoder(TapEvent).decode
decode_state = msgspec.msgpack.Decoder(TapState).decode
