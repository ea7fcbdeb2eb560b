"""The policy process: serves the hop AUTHORIZE and signs each verdict, a no as well as a yes."""

from __future__ import annotations

from beige import wire
from beige.bus import Bus, HopReply, Request
from beige.config import Config, load
from beige.keys import read_seal_key
from beige.process import Context
from beige.seals import request_digest, sign_verdict
from beige.wire import Header
from services.policy.core import Rules, decide, tool_named

CAPACITY = 1024


async def main(context: Context) -> None:
    rules = rules_of(load(context.home))
    key = read_seal_key(context.home, "verdict")

    def authorize(request: Request) -> HopReply:
        return reply(rules, key, request.header, request.body)

    bus = Bus(context.home, context.user)
    bus.serve("policy", capacity=CAPACITY, hops={wire.AUTHORIZE: authorize})
    await bus.start()
    context.ready()
    await context.stop.wait()
    await bus.close()


def rules_of(config: Config) -> Rules:
    return {name: frozenset(agent.tools) for name, agent in config.agents.items()}


def reply(rules: Rules, key: bytes, header: Header, body: bytes) -> HopReply:
    """The sealed decision about one request. Malformed if it can't be read."""
    method = f"{header.service}.{header.method}"
    decision = decide(rules, header.agent, method, tool_named(method, body))
    seal = sign_verdict(key, request_digest(header, body), decision.allowed, decision.reason)
    return HopReply(verdict=seal, denied=decision.reason)
