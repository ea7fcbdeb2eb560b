"""Admits connections: ZAP (RFC 27) with a secret per process and the kernel's word for its uid.

Runs in a thread of its own, since libzmq asks it while the router works. Attackers: a local process
without a secret, one with the right secret under the wrong uid, and an insider that opens many
connections (libzmq can be made to abort by colliding routing ids: connections and connect rate per
user are bounded).
"""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping

import zmq

from beige.keys import BusUser, secret_digest

DOMAIN = b"bus"
TAP_DOMAIN = b"tap"
"""The unredacted feed: only the tap's own user may connect."""
ENDPOINT = "inproc://zeromq.zap.01"
CONNECTS_PER_10_S = 200
OK, TRY_LATER, REFUSED = (b"200", b"OK"), (b"300", b"try later"), (b"400", b"refused")
log = logging.getLogger("broker.auth")


class Gate:
    """Decides one request (pure but for the clock it is given)."""

    def __init__(self, users: Mapping[str, BusUser]) -> None:
        self._users = users
        self._recent: dict[str, deque[float]] = defaultdict(deque)
        self._banned: dict[str, float] = {}

    def ban(self, user: str, until: float) -> None:
        self._banned[user] = until

    def decide(self, user: str, secret: str, address: str, now: float) -> tuple[bytes, bytes]:
        """`address` is ZAP's: `localhost:uid:gid:pid` on ipc. 400 makes a peer give up for ever on
        that socket, 300 makes libzmq try again."""
        known = self._users.get(user)
        expected = known["sha256"] if known else "0" * 64
        if not hmac.compare_digest(secret_digest(secret), expected) or known is None:
            return REFUSED
        if _uid(address) != known["uid"]:
            return REFUSED
        if self._banned.get(user, 0.0) > now:
            return REFUSED
        recent = self._recent[user]
        while recent and now - recent[0] > 10.0:
            recent.popleft()
        if len(recent) >= CONNECTS_PER_10_S:
            return TRY_LATER
        recent.append(now)
        return OK


def _may_enter(domain: bytes, user: bytes) -> bool:
    return domain == DOMAIN or (domain == TAP_DOMAIN and user.startswith(b"tap/"))


def _uid(address: str) -> int:
    parts = address.split(":")
    return int(parts[1]) if len(parts) == 4 and parts[1].isdigit() else -1


class Authenticator:
    """The ZAP handler. `start` returns once it is bound, before any ROUTER may be."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], gate: Gate) -> None:
        self._gate = gate
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ENDPOINT)
        self._thread = threading.Thread(target=self._serve, name="zap", daemon=True)
        self.refused = 0

    def start(self) -> None:
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """After the context was told to shut down: waits for the thread."""
        self._thread.join(timeout=2.0)

    def _serve(self) -> None:
        try:
            while True:
                frames = self._socket.recv_multipart()
                self._socket.send_multipart(self._reply(frames))
        except zmq.ContextTerminated:
            self._socket.close(0)

    def _reply(self, frames: list[bytes]) -> list[bytes]:
        version, request_id = [*frames, b"", b""][:2]
        user = ""
        status = REFUSED
        if len(frames) == 8 and version == b"1.0" and frames[5] == b"PLAIN":
            user = frames[6].decode("utf-8", "replace") if _may_enter(frames[2], frames[6]) else ""
            secret = frames[7].decode("utf-8", "replace")
            status = self._gate.decide(user, secret, frames[3].decode("utf-8", "replace"), time.monotonic())
        if status is not OK:
            self.refused += 1
            log.warning("connection refused", extra={"user": user[:64], "status": status[0].decode()})
        return [b"1.0", request_id, *status, user.encode() if status is OK else b"", b""]
