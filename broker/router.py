"""Touches the outside: the ROUTER socket, its monitor, and the loop that feeds the core.

One thread, no asyncio; never a blocking send. Socket options and why: docs/decisions/0001-bus-sockets.md.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import logging
import os
import secrets
import socket as sockets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from zmq.backend import zmq_poll
from zmq.utils.monitor import parse_monitor_message

from beige import frames, wire
from beige.errors import ConfigError
from beige.keys import read_bus_users
from beige.paths import Home, private_directory
from beige.wire import Header, decode_header
from broker.access import ROLES, role_name
from broker.auth import DOMAIN, Authenticator, Gate
from broker.calls import Body, Peer
from broker.core import Core
from broker.identity import forged
from broker.internal import Internal
from broker.links import Sent
from broker.tap import TapFeed

BATCH = 128
POLL_MS = 10
TICK_S = 0.01
BAN_S = 10.0
log = logging.getLogger("broker")


def seed_routing_ids() -> None:
    """Automatic routing ids start at libc's unseeded rand(): the same in every process. A peer that
    knows the next one can claim it and abort the broker (`tests/attacks/test_routing_ids.py`)."""
    ctypes.CDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))


class Router:
    """The broker's outside."""

    def __init__(self, home: Home) -> None:
        private_directory(home.run)
        self._lock = _take_lock(home.run / "bus.lock")
        os.umask(0o077)
        seed_routing_ids()
        self._context: Any = zmq.Context()
        self._gate = Gate(read_bus_users(home))
        self._auth = Authenticator(self._context, self._gate)
        self._auth.start()
        self._feed = TapFeed(self._context, home.tap_feed_endpoint)
        self._socket = self._open(home.bus_endpoint)
        self._internal = Internal(self._feed, self._auth)
        self.core = Core(self, epoch=secrets.randbits(32) or 1, internal=self._internal)
        self._internal.core = self.core

    def _open(self, endpoint: str) -> Any:
        """The bus's ROUTER. Without ZAP nobody would be authenticated, so it is enforced."""
        s = self._context.socket(zmq.ROUTER)
        s.linger, s.sndhwm, s.rcvhwm = 0, 1000, 1000
        s.router_mandatory, s.router_handover = 1, 0
        s.maxmsgsize = wire.MAX_FRAME
        s.heartbeat_ivl, s.heartbeat_timeout, s.heartbeat_ttl = 1000, 3000, 3000
        s.handshake_ivl = 2000
        s.backlog = 256
        s.zap_domain = DOMAIN
        s.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        s.plain_server = True
        self._monitor = s.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
        s.bind(endpoint)
        return s

    # --- Port ------------------------------------------------------------------------------------

    def send(self, peer: Peer, header: bytes, body: Body) -> Sent:
        try:
            frames.send_routed(self._socket, peer.rid, header, body)
        except frames.Again:
            return "full"
        except frames.ZMQError:
            return "gone"
        return "ok"

    def tap(self, direction: str, peer: Peer, header: Header, body: Body) -> None:
        if self._feed.on:
            self._feed.copy(direction, peer, header, body)

    def kick(self, peer: Peer) -> None:
        """Shut the connection down through a copy of its fd, and keep the user out for a while."""
        log.warning("peer kicked", extra={"user": peer.user})
        self._gate.ban(peer.user, time.monotonic() + BAN_S)
        try:
            connection = sockets.socket(fileno=os.dup(peer.fd))
            with connection:
                connection.shutdown(sockets.SHUT_RDWR)
        except OSError:
            pass  # it closed by itself

    # --- loop ------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool]) -> None:
        """Route until `until` says so, which is asked every few milliseconds."""
        gc.collect()
        gc.freeze()
        gc.disable()
        polled = [(self._socket, zmq.POLLIN), (self._monitor, zmq.POLLIN)]
        next_tick = next_heartbeat = 0.0
        while not until():
            ready = zmq_poll(polled, POLL_MS)
            now = self.core.now = time.monotonic()
            self._receive()
            if any(s is self._monitor for s, _ in ready):
                self._watch()
            if now >= next_tick:
                next_tick = now + TICK_S
                self.core.tick(now)
                self._feed.tick(now)
                if not self._auth.alive():
                    raise RuntimeError("the ZAP handler died; refusing to route unauthenticated traffic")
            if now >= next_heartbeat:
                next_heartbeat = now + wire.HEARTBEAT_S
                self.core.heartbeat(now)
                if not ready:
                    gc.collect()

    def close(self) -> None:
        self._feed.close()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()
        self._auth.stop()
        self._lock.close()

    def _receive(self) -> None:
        for _ in range(BATCH):
            try:
                rid, header, body = frames.recv_routed(self._socket)
            except frames.Again:
                return
            self._message(rid, header, body)

    def _watch(self) -> None:
        while True:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            self.core.disconnected(int(event["value"]))

    # --- one message -----------------------------------------------------------------------------

    def _message(self, rid: Any, encoded: bytes, body: Body) -> None:
        core = self.core
        user = rid.get("User-Id")
        peer = core.peers.get(rid.bytes)
        header = self._decode(encoded, body)
        if peer is None:
            peer = self._admit(rid, user, header)
            if peer is None:
                return
        elif peer.user != user:
            core.counters["spoofed"] += 1
            core.lose(peer, "spoofed")
            self.kick(peer)
            return
        peer.seen = core.now
        if header is None:
            core.counters["malformed"] += 1
            core.refuse(peer, 0, "malformed", "the message is not [header, body] within its limits")
            return
        self.tap("in", peer, header, body)
        field = forged(peer, header)
        if field:
            core.counters["forged"] += 1
            core.refuse(peer, header.id, "denied", f"role {peer.role_name!r} may not set {field!r}")
            return
        self._handle(peer, header, body)

    def _handle(self, peer: Peer, header: Header, body: Body) -> None:
        core, kind = self.core, header.type
        if kind == wire.CALL:
            core.call(peer, header, body)
        elif kind in (wire.REPLY, wire.ERR):
            core.answer(peer, header, body)
        elif kind == wire.ITEM:
            core.item(peer, header, body)
        elif kind == wire.CREDIT:
            core.credit(peer, header)
        elif kind == wire.CANCEL:
            core.cancel(peer, header)
        elif kind == wire.HELLO:
            core.hello(peer, header)
        elif kind == wire.DRAIN:
            peer.draining = True
        elif kind == wire.BYE:
            core.lose(peer, "bye")
        elif kind != wire.HB:
            core.counters["malformed"] += 1
            core.refuse(peer, header.id, "malformed", f"message type {kind} is not for the broker")

    @staticmethod
    def _decode(encoded: bytes, body: Body) -> Header | None:
        if not encoded or len(encoded) > wire.MAX_HEADER or len(body) > wire.MAX_BODY:
            return None
        try:
            header = decode_header(encoded)
        except wire.DECODE_ERRORS:
            return None
        return header if header.v == wire.VERSION else None

    def _admit(self, rid: Any, user: str, header: Header | None) -> Peer | None:
        """A first message. Only HELLO opens a session; anything else is told to start over. Ids
        starting with a NUL are libzmq's own: a peer using one wants to collide with another."""
        core = self.core
        name = role_name(user)
        role = ROLES.get(name)
        known = sum(1 for p in core.peers.values() if p.user == user)
        if header is None or header.type != wire.HELLO or role is None or rid.bytes[:1] == b"\0" \
                or known >= role.connections:  # fmt: skip
            core.counters["reset"] += 1
            self._reset(rid.bytes)
            return None
        address = (rid.get("Peer-Address") or "").split(":")
        peer = Peer(
            rid=rid.bytes,
            user=user,
            role_name=name,
            role=role,
            fd=rid.get(zmq.SRCFD),
            seen=core.now,
            since=core.now,
            pid=int(address[3]) if len(address) == 4 and address[3].isdigit() else 0,
        )
        core.add_peer(peer)
        return peer

    def _reset(self, rid: bytes) -> None:
        header = wire.encode_header(Header(type=wire.RESET, epoch=self.core.epoch))
        try:
            frames.send_routed(self._socket, rid, header, b"")
        except (frames.Again, frames.ZMQError):
            self.core.counters["reset_unsent"] += 1


def _take_lock(path: Path) -> Any:
    """A second bind on a live ipc path would silently steal it: one broker per home."""
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(
            str(path), "is held: a broker already runs for this home", "stop it first"
        ) from None
    return lock
