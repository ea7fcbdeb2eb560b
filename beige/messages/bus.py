"""Bodies of `bus.*`, which the broker answers itself."""

from __future__ import annotations

from beige.messages.base import Body, Empty, Method


class PeerInfo(Body):
    user: str
    service: str
    capacity: int
    in_flight: int
    queued: int
    age_s: float
    pid: int = 0


class BusStats(Body):
    epoch: int
    uptime_s: float
    pending: int
    peers: list[PeerInfo]
    counters: dict[str, int]
    queues: dict[str, int]


class TapRequest(Body):
    """Sent by the tap when its subscribers change."""

    on: bool
    bodies: bool = False


class CancelResult(Body):
    """`bus.cancel` ends the prompts of the header's agent and session, whoever made them."""

    cancelled: int


METHODS = {
    "bus.cancel": Method(Empty, CancelResult),
    "bus.stats": Method(Empty, BusStats),
    "bus.tap": Method(TapRequest, Empty),
}
