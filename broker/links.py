"""Decides which peers are alive, and how a message reaches one: at once, a little later, or never.

A send that was accepted is no delivery; a peer that can't be reached or does not read is lost, and
whoever owns its calls (`core.py`) resolves them.
"""

from __future__ import annotations

import heapq
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from typing import Literal, Protocol

from beige import wire
from beige.wire import Header, encode_header
from broker import identity
from broker.calls import Body, Peer

MAX_OUTBOX = 1000
MAX_OUTBOX_BYTES = 16 * 1024 * 1024
REPROBE_S = (0.0, 0.005, 0.05)
"""A probe may still be taken by a pipe that is being torn down, so it is repeated."""

Sent = Literal["ok", "full", "gone"]


class Port(Protocol):
    """The wire, as the broker's rules see it."""

    def send(self, peer: Peer, header: bytes, body: Body) -> Sent: ...

    def tap(self, direction: str, peer: Peer, header: Header, body: Body) -> None:
        """Copy a message to the operator's tap; costs nothing while nobody listens."""

    def kick(self, peer: Peer) -> None:
        """Close the peer's connection and keep its user out for a while."""


class Links(ABC):
    """The sessions of all peers."""

    def __init__(self, port: Port, epoch: int) -> None:
        self.port, self.epoch = port, epoch
        self.now = 0.0
        self.peers: dict[bytes, Peer] = {}
        self.by_fd: dict[int, Peer] = {}
        self.counters: Counter[str] = Counter()
        self._suspects: list[tuple[float, int, Peer]] = []
        self._order = itertools.count()

    @abstractmethod
    def peer_lost(self, peer: Peer) -> None:
        """Called once when a session is over."""

    def add_peer(self, peer: Peer) -> None:
        self.peers[peer.rid] = peer
        self.by_fd[peer.fd] = peer
        self.counters["sessions"] += 1

    def lose(self, peer: Peer, why: str) -> None:
        if not peer.alive:
            return
        peer.alive = False
        self.counters[f"gone_{why}"] += 1
        self.peers.pop(peer.rid, None)
        if self.by_fd.get(peer.fd) is peer:
            del self.by_fd[peer.fd]
        peer.outbox.clear()
        self.peer_lost(peer)

    def disconnected(self, fd: int) -> None:
        """The monitor saw a connection close. `fd` may be reused already, so the peer is probed."""
        peer = self.by_fd.get(fd)
        if peer:
            for delay in REPROBE_S:
                heapq.heappush(self._suspects, (self.now + delay, next(self._order), peer))
            self._probe_suspects()

    def _probe_suspects(self) -> None:
        while self._suspects and self._suspects[0][0] <= self.now:
            peer = heapq.heappop(self._suspects)[2]
            self.send(peer, Header(type=wire.HB, epoch=self.epoch))

    def heartbeat(self, now: float) -> None:
        """Called every `wire.HEARTBEAT_S`."""
        self.now = now
        for peer in list(self.peers.values()):
            if now - peer.seen > wire.DEAD_AFTER_S:
                self.lose(peer, "silent")
            else:
                self.send(peer, Header(type=wire.HB, epoch=self.epoch))

    def tend_links(self) -> None:
        """Probe suspects, try full pipes again. Called every few milliseconds."""
        self._probe_suspects()
        for peer in list(self.peers.values()):
            if peer.outbox:
                self._drain_outbox(peer)

    # --- sending -------------------------------------------------------------------------------

    def send(self, peer: Peer, header: Header, body: Body = b"") -> bool:
        """Never silent: False means the peer is (now) lost and its calls are being resolved."""
        if not peer.alive:
            return False
        self.port.tap("out", peer, header, body)
        encoded = encode_header(header)
        if not peer.outbox:
            sent = self.port.send(peer, encoded, body)
            if sent == "ok":
                return True
            if sent == "gone":
                self.lose(peer, "unreachable")
                return False
            self.counters["pipe_full"] += 1
        return self._keep(peer, encoded, body)

    def _keep(self, peer: Peer, encoded: bytes, body: Body) -> bool:
        """The pipe is full: wait, within bounds, then give the peer up."""
        if len(peer.outbox) >= MAX_OUTBOX or peer.outbox_bytes > MAX_OUTBOX_BYTES:
            self.lose(peer, "slow")
            self.port.kick(peer)
            return False
        peer.outbox.append((encoded, body))
        peer.outbox_bytes += len(encoded) + len(body)
        return True

    def _drain_outbox(self, peer: Peer) -> None:
        while peer.outbox and peer.alive:
            encoded, body = peer.outbox[0]
            sent = self.port.send(peer, encoded, body)
            if sent == "full":
                return
            if sent == "gone":
                self.lose(peer, "unreachable")
                return
            peer.outbox.popleft()
            peer.outbox_bytes -= len(encoded) + len(body)

    def refuse(self, peer: Peer, call_id: int, code: str, message: str) -> None:
        """Answer a message that never became a call; too many offences end the session."""
        self.counters[f"refused_{code}"] += 1
        header = Header(type=wire.ERR, id=call_id, code=code, epoch=self.epoch)
        self.send(peer, header, wire.error_body(message))
        if code in ("denied", "malformed") and identity.offends(peer, self.now):
            self.counters["kicked"] += 1
            self.lose(peer, "offences")
            self.port.kick(peer)
