"""A broker core with a wire that records: what was sent to whom, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from beige import wire
from beige.wire import Header, decode_header
from broker.access import ROLES
from broker.calls import Peer
from broker.core import Core


@dataclass
class Recorder:
    """A `broker.links.Port`. `full` and `gone` hold users whose pipe refuses."""

    sent: list[tuple[str, Header, bytes]] = field(default_factory=list)
    full: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    kicked: list[str] = field(default_factory=list)

    def send(self, peer, header, body):
        if peer.user in self.gone:
            return "gone"
        if peer.user in self.full:
            return "full"
        self.sent.append((peer.user, decode_header(header), bytes(body)))
        return "ok"

    def tap(self, direction, peer, header, body):
        pass

    def kick(self, peer):
        self.kicked.append(peer.user)


class Play:
    """Drives a core message by message."""

    def __init__(self) -> None:
        self.port = Recorder()
        self.core = Core(self.port, epoch=0xABCD)
        self.core.now = 100.0
        self._fds = iter(range(10, 10_000))

    def peer(self, user: str, serves: str = "", capacity: int = 8) -> Peer:
        name = user.split("/")[0]
        peer = Peer(user.encode() + bytes([next(self._fds) % 256]), user, name, ROLES[name], next(self._fds),
                    self.core.now, self.core.now)  # fmt: skip
        self.core.add_peer(peer)
        self.core.hello(peer, Header(type=wire.HELLO, service=serves, credit=capacity))
        self.port.sent = [s for s in self.port.sent if s[0] != user or s[1].type != wire.WELCOME]
        return peer

    def house(self) -> dict[str, Peer]:
        """One peer of each kind the corridor needs."""
        return {
            "policy": self.peer("policy/0", "policy"),
            "audit": self.peer("audit/0", "audit"),
            "sandbox": self.peer("sandbox/0", "sandbox"),
            "tools": self.peer("tools/0", "tools"),
            "llm": self.peer("llm/0", "llm"),
            "bridge": self.peer("bridge/0"),
            "cli": self.peer("cli/0"),
        }

    def take(self, user: str) -> list[tuple[Header, bytes]]:
        """Everything sent to `user` since the last take, heartbeats aside."""
        mine = [(h, b) for u, h, b in self.port.sent if u == user and h.type != wire.HB]
        self.port.sent = [s for s in self.port.sent if s[0] != user]
        return mine

    def one(self, user: str) -> Header:
        taken = self.take(user)
        assert len(taken) == 1, f"{user} got {[wire.TYPE_NAMES[h.type] for h, _ in taken]}"
        return taken[0][0]

    def call(self, peer: Peer, method: str, number: int = 1, body: bytes = b"\x80", **fields) -> None:
        service, _, name = method.partition(".")
        self.core.call(peer, Header(type=wire.CALL, id=number, service=service, method=name, **fields), body)

    def reply(self, peer: Peer, to: Header, body: bytes = b"\x80", **fields) -> None:
        self.core.answer(peer, Header(type=wire.REPLY, id=to.id, **fields), body)

    def error(self, peer: Peer, to: Header, code: str, message: str = "no", **fields) -> None:
        self.core.answer(peer, Header(type=wire.ERR, id=to.id, code=code, **fields), wire.error_body(message))

    def to_executor(self, peers: dict[str, Peer], executor: str = "sandbox") -> Header:
        """Walk a call that was just made through policy and audit; the header the executor got."""
        self.reply(peers["policy"], self.one("policy/0"), verdict=b"yes")
        self.reply(peers["audit"], self.one("audit/0"), receipt=b"written")
        return self.one(f"{executor}/0")

    def recorded(self, peers: dict[str, Peer]) -> Header:
        """Audit acknowledges FINISHED; the header it got."""
        header = self.one("audit/0")
        assert header.hop == wire.FINISHED
        self.reply(peers["audit"], header)
        return header
