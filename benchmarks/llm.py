"""An answer through the whole house beside the bare SDK, against the same provider simulator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from beige.testing import House
from benchmarks.rig import Peer, Row, alternate, row

ROUNDS = 7
WORDS = 3000
SHORT, LONG = "short", f"long-{WORDS}"
FIRST_LIMIT_MS = 10.0
THROUGHPUT = 0.7
MODULE = "benchmarks.llm_peers"
AGENTS = {"quick": SHORT, "chatty": LONG}
"""Agent to its model, which says one word or many."""


def configuration(url: str) -> str:
    agents = ", ".join(
        f'{name}: {{ model: {{ provider: "sim", model: "{model}" }}, tools: [], sandbox: {{ image: "x" }} }}'
        for name, model in AGENTS.items()
    )
    provider = f'sim: {{ api: "openai-completions", baseUrl: "{url}/v1" }}'
    return f"{{ llm: {{ providers: {{ {provider} }} }}, agents: {{ {agents} }} }}"


def run(house: House) -> list[Row]:
    """`house`: nothing runs in it yet."""
    with ExitStack() as stack:
        simulator = stack.enter_context(Peer("simulator", module=MODULE))
        house.home.config.write_text(configuration(simulator.greeting))
        for name in ("broker", "policy", "audit", "llm"):
            house.start(name)
        stack.enter_context(Peer("sandbox", home=house.home.root, module=MODULE))
        bare = stack.enter_context(Peer("bare", simulator.greeting, module=MODULE))
        ours = stack.enter_context(Peer("stack", home=house.home.root, module=MODULE))
        return [_first(ours, bare), _whole(ours, bare)]


def _first(ours: Peer, bare: Peer) -> Row:
    asked = {"ours": _ask(ours, "quick", 10, "first_ms"), "bare": _ask(bare, SHORT, 10, "first_ms")}
    times = alternate(asked, ROUNDS)
    return row("first token / bare SDK", times["ours"], times["bare"], above_limit_ms=FIRST_LIMIT_MS)


def _whole(ours: Peer, bare: Peer) -> Row:
    asked = {"ours": _ask(ours, "chatty", 1, "whole_ms"), "bare": _ask(bare, LONG, 1, "whole_ms")}
    times = alternate(asked, ROUNDS)
    name = f"answer of {WORDS} tokens / bare SDK"
    return row(name, times["ours"], times["bare"], ratio_limit=1 / THROUGHPUT)


def _ask(peer: Peer, of: str, count: int, measure: str) -> Callable[[], float]:
    return lambda: float(peer.ask(of=of, count=count)[measure])
