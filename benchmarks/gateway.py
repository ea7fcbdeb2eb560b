"""Streams through the gateway beside prompts over the bus, and what many of them at once take."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from beige.keys import ensure_keys
from beige.testing import House
from beige.testing.house import USERS
from benchmarks.rig import Fact, Peer, Row, alternate, row

ROUNDS, FEW_ROUNDS, COUNT = 7, 5, 10
STREAMS, WORKERS = 500, 4
"""As many turns at once as llm processes of 128 can serve."""
HELD_S = 20
STALLED = 8
FIRST_LIMIT_MS = 15.0
STALL_RATIO = 1.25
MODULE = "benchmarks.gateway_peers"
API, CHAT = "api", "chat"
SCRIPT = {
    "scripts": [
        {"when": "^hold", "steps": [{"say": "I wait.", "tool": "read", "args": {"path": "x"}},
                                    {"wait": HELD_S, "say": "done"}]},
        {"when": "^long", "steps": [{"say": "{{prompt}} " * 32}]},
        {"steps": [{"say": "hello"}]},
    ]
}  # fmt: skip


def configuration() -> str:
    agent = {"model": {"provider": "script", "model": "m"}, "tools": [], "sandbox": {"image": "x"}}
    provider = {"api": "scripted", "script": "script.json5"}
    return json.dumps({
        "llm": {"providers": {"script": provider}}, "agents": {"travel": agent}, "gateway": {"port": 0},
        "scale": {"llm": WORKERS},
    })  # fmt: skip


def run(house: House) -> list[Row | Fact]:
    """`house`: nothing runs in it yet."""
    house.home.config.write_text(configuration())
    (house.home.root / "script.json5").write_text(json.dumps(SCRIPT))
    workers = [f"llm/{number}" for number in range(WORKERS)]
    ensure_keys(house.home, [*USERS, *workers])
    for name in ("broker", "policy", "audit", *workers, "gateway"):
        house.start(name)
    with ExitStack() as stack:
        stack.enter_context(Peer("sandbox", home=house.home.root, module="benchmarks.llm_peers"))
        http = stack.enter_context(Peer("http", home=house.home.root, module=MODULE))
        bus = stack.enter_context(Peer("bus", home=house.home.root, module=MODULE))
        return [*_first(http, bus), *_many(house, http, bus), *_stalled(http)]


def _first(http: Peer, bus: Peer) -> list[Row]:
    asked = {
        "bus": _ask(bus, count=COUNT),
        API: _ask(http, count=COUNT, path=API),
        CHAT: _ask(http, count=COUNT, path=CHAT),
    }
    times = alternate(asked, ROUNDS)
    return [
        row(f"first token: HTTP ({path}) / bus", times[path], times["bus"], above_limit_ms=FIRST_LIMIT_MS)
        for path in (API, CHAT)
    ]


def _many(house: House, http: Peer, bus: Peer) -> list[Row | Fact]:
    """All of them open, and their turns under way, at the same time; and one more beside them."""
    gateway = house.processes["gateway"].pid
    before = _resident_kib(gateway)
    opened = http.ask(hold=STREAMS)
    during = _resident_kib(gateway)
    asked = {"bus": _ask(bus, count=COUNT), API: _ask(http, count=COUNT, path=API)}
    times = alternate(asked, FEW_ROUNDS)
    ended = http.ask(release=True)
    name = f"first token, {STREAMS} streams open: HTTP / bus"
    return [
        row(name, times[API], times["bus"], above_limit_ms=FIRST_LIMIT_MS),
        Fact("streams open with their turns under way", opened["open"], f"of {STREAMS}", STREAMS),
        Fact("of these, complete", ended["complete"], f"of {STREAMS}", STREAMS),
        Fact("first token of streams that begin at once, p50", round(opened["first_ms"]), "ms"),
        Fact("gateway's memory per open stream", round((during - before) / STREAMS, 1), "KiB"),
    ]


def _stalled(http: Peer) -> list[Row | Fact]:
    """Readers that stopped in the middle of long answers, beside one that reads."""
    behind: list[int] = []

    def beside() -> float:
        http.ask(stall=STALLED)
        found = float(http.ask(count=COUNT, path=API)["first_ms"])
        behind.append(int(http.ask(resume=True)["behind"]))
        return found

    times = alternate({"beside": beside, "alone": _ask(http, count=COUNT, path=API)}, FEW_ROUNDS)
    name = f"first token, {STALLED} stopped readers / none"
    return [
        row(name, times["beside"], times["alone"], ratio_limit=STALL_RATIO),
        Fact("stopped readers for whom no more than 1 MiB was kept", min(behind), f"of {STALLED}", STALLED),
    ]


def _ask(peer: Peer, **question: object) -> Callable[[], float]:
    return lambda: float(peer.ask(**question)["first_ms"])


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])
