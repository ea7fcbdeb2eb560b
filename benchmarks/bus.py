"""A call over the bus, ungoverned and through the whole corridor, beside a bare pyzmq ROUTER proxy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from beige.testing import House
from benchmarks.rig import Peer, Row, alternate, row

ROUNDS = 7
ONE = {"count": 1000, "concurrency": 1}
MANY = {"count": 6400, "concurrency": 64}
DIRECT, GOVERNED = "sandbox.list", "tools.call"


def run(house: House) -> list[Row]:
    """`house`: broker, policy and audit run in it."""
    front, back = (f"ipc://{house.home.run / name}" for name in ("bench-front.sock", "bench-back.sock"))
    with ExitStack() as stack:
        stack.enter_context(Peer("plain-proxy", front, back))
        stack.enter_context(Peer("plain-executor", back))
        for user in ("sandbox/0", "tools/1"):
            stack.enter_context(Peer("bus-executor", user, home=house.home.root))
        plain = stack.enter_context(Peer("plain-caller", front))
        bus = stack.enter_context(Peer("bus-caller", "cli/0", home=house.home.root))
        leases = stack.enter_context(Peer("lease-caller", "llm/0", "cli/1", home=house.home.root))
        return _one_caller(bus, plain) + _many_callers(bus, plain) + _leases(bus, leases)


def _one_caller(bus: Peer, plain: Peer) -> list[Row]:
    times = alternate(
        {
            "plain": lambda: float(plain.ask(**ONE)["p50_ms"]),
            "direct": _bus(bus, DIRECT, "p50_ms", ONE),
            "governed": _bus(bus, GOVERNED, "p50_ms", ONE),
        },
        ROUNDS,
    )
    return [
        row("bus round trip / bare proxy, 1 caller, p50", times["direct"], times["plain"]),
        row("governed corridor / bare proxy, 1 caller, p50", times["governed"], times["plain"]),
        row("governed / ungoverned call, 1 caller, p50", times["governed"], times["direct"]),
    ]


def _leases(bus: Peer, leases: Peer) -> list[Row]:
    """What each model call pays for being decided, recorded, reserved and settled."""
    times = alternate(
        {
            "lease": lambda: float(leases.ask(count=300)["p50_ms"]),
            "governed": _bus(bus, GOVERNED, "p50_ms", ONE),
        },
        ROUNDS,
    )
    return [row("lease taken and reported / governed call, p50", times["lease"], times["governed"])]


def _many_callers(bus: Peer, plain: Peer) -> list[Row]:
    times = alternate(
        {
            "plain": lambda: float(plain.ask(**MANY)["each_ms"]),
            "direct": _bus(bus, DIRECT, "each_ms", MANY),
            "governed": _bus(bus, GOVERNED, "each_ms", MANY),
        },
        ROUNDS,
    )
    return [
        row("bus / bare proxy, 64 callers, time per call", times["direct"], times["plain"]),
        row("governed / bare proxy, 64 callers, per call", times["governed"], times["plain"]),
    ]


def _bus(bus: Peer, method: str, measure: str, load: dict[str, int]) -> Callable[[], float]:
    return lambda: float(bus.ask(method=method, agent="travel", **load)[measure])
