"""Decides which worker of a service gets a call, and keeps the calls that wait for one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from broker.calls import Call, Peer

MAX_QUEUE = 2000
MAX_QUEUE_BYTES = 64 * 1024 * 1024


class Queue:
    """Oldest first. A call that ends while it waits leaves at once: an agent that calls and cancels would
    else fill the queue of a busy service for all others
    (`tests/unit/broker/test_dispatch.py::test_a_cancelled_call_leaves_its_place_in_the_queue`)."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, tuple[Call, int]] = OrderedDict()
        """By the call's id, each with the bytes it counts for: its body may shrink meanwhile."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Call]:
        """Those waiting now; they may leave meanwhile."""
        return iter([call for call, _ in self._waiting.values()])

    def is_full(self, size: int) -> bool:
        """Whether a body of `size` bytes has no place."""
        return len(self._waiting) >= MAX_QUEUE or self._bytes + size > MAX_QUEUE_BYTES

    def append(self, call: Call) -> None:
        size = len(call.body)
        self._waiting[call.id] = (call, size)
        self._bytes += size

    def put_back(self, call: Call) -> None:
        """In front of those that came later."""
        self.append(call)
        self._waiting.move_to_end(call.id, last=False)

    def pop(self) -> Call:
        _, (call, size) = self._waiting.popitem(last=False)
        self._bytes -= size
        return call

    def discard(self, call: Call) -> None:
        if found := self._waiting.pop(call.id, None):
            self._bytes -= found[1]


class Service:
    """The workers of one service and the calls waiting for them."""

    STICKY_KEYS = 10_000
    STICKY_S = 900.0

    def __init__(self, name: str, served_at: float) -> None:
        self.name = name
        self.served_at = served_at
        """When it last had a worker, if only one that ends: it is being restarted, and the next one's time
        begins when that one is gone."""
        self.was_served = False
        self.workers: dict[bytes, Peer] = {}
        self.queue = Queue()
        self._sticky: OrderedDict[str, tuple[Peer, float]] = OrderedDict()

    def pick(self, key: str, now: float) -> Peer | None:
        """The worker for a call: the one its key went to before, else the least loaded; None if
        all are full (a full sticky worker means waiting for it: order per key is kept)."""
        if key:
            kept = self._sticky.get(key)
            if kept and self._still_sticks(kept[0], key, now - kept[1]):
                worker: Peer | None = kept[0]
                if worker is not None and len(worker.work) >= worker.capacity:
                    return None
            else:
                worker = self._least_loaded()
            if worker is not None:
                self._sticky[key] = (worker, now)
                self._sticky.move_to_end(key)
                if len(self._sticky) > self.STICKY_KEYS:
                    self._sticky.popitem(last=False)
            return worker
        return self._least_loaded()

    def _still_sticks(self, worker: Peer, key: str, idle_s: float) -> bool:
        if not worker.alive or worker.draining:
            return False
        return idle_s < self.STICKY_S or any(call.affinity == key for call in worker.work.values())

    def has_room(self) -> bool:
        return any(len(w.work) < w.capacity and not w.draining for w in self.workers.values())

    def _least_loaded(self) -> Peer | None:
        best, best_load = None, 1.0
        for worker in self.workers.values():
            if worker.draining or worker.capacity <= 0:
                continue
            load = len(worker.work) / worker.capacity
            if load < best_load:
                best, best_load = worker, load
        return best
