"""`bus.*`: the methods the broker answers itself."""

from __future__ import annotations

import time

import msgspec

from beige import wire
from beige.wire import Header
from broker.auth import Authenticator
from broker.calls import Body, Peer
from broker.core import Core
from broker.tap import TapFeed


class _TapRequest(msgspec.Struct, forbid_unknown_fields=True):
    on: bool
    bodies: bool = False


class Internal:
    def __init__(self, feed: TapFeed, auth: Authenticator) -> None:
        self._feed = feed
        self._auth = auth
        self._born = time.monotonic()
        self.core: Core | None = None

    def answer(self, peer: Peer, header: Header, body: Body) -> tuple[Header, Body]:
        try:
            reply = self._reply(header, bytes(body))
        except wire.DECODE_ERRORS as error:
            return Header(type=wire.ERR, id=header.id, code="malformed"), wire.error_body(str(error))
        return Header(type=wire.REPLY, id=header.id), msgspec.msgpack.encode(reply)

    def _reply(self, header: Header, body: bytes) -> dict[str, object]:
        match header.method:
            case "stats":
                return self._stats()
            case "cancel":
                return self._cancel(header)
            case _:
                return self._tap(body)

    def _cancel(self, header: Header) -> dict[str, object]:
        assert self.core is not None
        if not header.agent or not header.session:
            raise msgspec.ValidationError("bus.cancel needs an agent and a session")
        return {"cancelled": self.core.cancel_prompts(header.agent, header.session)}

    def _tap(self, body: bytes) -> dict[str, object]:
        request = msgspec.msgpack.decode(body, type=_TapRequest)
        self._feed.on, self._feed.bodies = request.on, request.bodies
        return {}

    def _stats(self) -> dict[str, object]:
        core = self.core
        assert core is not None  # wired before the first message
        now = time.monotonic()
        counters = dict(core.counters)
        counters["tap_sequence"], counters["tap_dropped"] = self._feed.sequence, self._feed.dropped
        counters["auth_refused"] = self._auth.refused
        return {
            "epoch": core.epoch,
            "uptime_s": now - self._born,
            "pending": len(core.calls),
            "peers": [
                {
                    "user": p.user,
                    "service": p.service,
                    "capacity": p.capacity,
                    "in_flight": len(p.work),
                    "queued": len(p.outbox),
                    "age_s": now - p.since,
                    "pid": p.pid,
                }
                for p in core.peers.values()
            ],
            "counters": counters,
            "queues": {s.name: len(s.queue) for s in core.services.values() if s.queue},
        }
