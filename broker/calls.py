"""Values the broker keeps: peers, and calls in flight."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from beige import wire
from beige.wire import Header
from broker.access import Role, Station

Body = Any
"""bytes, or a zmq Frame for large bodies, which is forwarded without copying."""


@dataclass(eq=False, slots=True)
class Peer:
    """One session of one authenticated process."""

    rid: bytes
    user: str
    role_name: str
    role: Role
    fd: int
    seen: float
    since: float
    pid: int = 0
    service: str = ""
    capacity: int = 0
    draining: bool = False
    alive: bool = True
    calls: dict[int, Call] = field(default_factory=dict)
    """Calls it made, by its own id for them."""
    work: dict[int, Call] = field(default_factory=dict)
    """Calls dispatched to it and not yet answered, by the broker's id."""
    outbox: deque[tuple[bytes, Body]] = field(default_factory=deque)
    """Messages that found its pipe full, in order."""
    outbox_bytes: int = 0
    offences: deque[float] = field(default_factory=deque)
    """Times of recent denied or malformed messages."""


@dataclass(eq=False, slots=True)
class Credit:
    """How much one side of a stream may still send; None until its receiver granted any."""

    items: int = 0
    bytes: int = 0

    def grant(self, items: int, size: int) -> None:
        self.items += items
        self.bytes += size

    def take(self, size: int) -> bool:
        """False if the producer sends more than it was granted. The last item may go over the
        byte credit: a producer may send while any byte credit is left."""
        if self.items <= 0 or self.bytes <= 0:
            return False
        self.items -= 1
        self.bytes -= size
        return True


@dataclass(eq=False, slots=True)
class Call:
    """A call in flight, at one station of its way."""

    id: int
    name: str
    """Unique across broker restarts; the audit log's `id`."""
    caller: Peer | None
    """None once the caller is gone: what must be recorded still is."""
    caller_id: int
    header: Header
    """As the next station gets it; agent, session and channel already settled."""
    body: Body
    way: tuple[Station, ...]
    deadline: float
    parent: Call | None = None
    children: set[Call] = field(default_factory=set)
    station: int = 0
    worker: Peer | None = None
    queued_since: float = 0.0
    attempt: int = 0
    token: str = ""
    recorded: bool = False
    """STARTED was sent to audit, so FINISHED must be, whatever happens."""
    answer: tuple[Header, Body] | None = None
    """The final answer, held until audit has recorded it."""
    answered: bool = False
    down: Credit = field(default_factory=Credit)
    """Granted by the caller to the executor."""
    up: Credit = field(default_factory=Credit)
    """Granted by the executor to the caller."""
    down_ended: bool = False

    @property
    def hop(self) -> int:
        return self.way[self.station][0]

    @property
    def service(self) -> str:
        return self.way[self.station][1]

    @property
    def affinity(self) -> str:
        """Calls with one key go to one worker. What concerns a session goes where the session is, also
        if its caller names no key: two workers can't serve its prompts in order."""
        if self.hop not in (wire.DIRECT, wire.EXECUTE):
            return ""
        header = self.header
        if not header.key and header.service == "llm" and header.session:
            return f"{header.agent}/{header.session}"
        return header.key

    def is_turn_of(self, agent: str, session: str) -> bool:
        header = self.header
        turns = header.service == "llm" and header.method in ("prompt", "compact")
        return turns and (header.agent, header.session) == (agent, session)

    @property
    def governed(self) -> bool:
        return len(self.way) > 1

    @property
    def at_executor(self) -> bool:
        return self.hop in (wire.DIRECT, wire.EXECUTE) and self.worker is not None

    @property
    def retryable(self) -> bool:
        """May be dispatched again after its worker died: no effect yet, or one that is recognised."""
        return self.hop not in (wire.DIRECT, wire.EXECUTE) or bool(self.header.idem)
