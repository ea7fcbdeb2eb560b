"""The policy process: serves the hop AUTHORIZE and signs each verdict, a no as well as a yes; and
leases for model calls."""

from __future__ import annotations

import asyncio

from beige import wire
from beige.bus import Bus, HopReply, Request
from beige.config import Config, load
from beige.destinations import Rule, parse_rule
from beige.keys import read_seal_key
from beige.process import Context
from beige.seals import request_digest, sign_verdict
from beige.wire import Header
from services.policy.core import Rules, decide, tool_named
from services.policy.desk import Desk
from services.policy.egress import EGRESS_METHOD, Doors
from services.policy.leases import ModelKey

CAPACITY = 4096
"""Calls at once, open leases included: `desk.MAX_LEASES` leaves room to authorize."""
HEALTH_FILE = "provider-health.json"


async def main(context: Context) -> None:
    config = load(context.home)
    rules = rules_of(config)
    key = read_seal_key(context.home, "verdict")

    doors = Doors(doors_of(config), context.log)

    def authorize(request: Request) -> HopReply:
        return reply(rules, doors, key, request.header, request.body)

    desk = Desk(models_of(config), limits_of(config), context.home.data / HEALTH_FILE)
    bus = Bus(context.home, context.user)
    bus.serve(
        "policy",
        {"policy.lease": desk.lease, "policy.learn": doors.learn},
        capacity=CAPACITY,
        hops={wire.AUTHORIZE: authorize},
    )
    await bus.start()
    context.ready()
    await context.stop.wait()
    await asyncio.gather(bus.close(), desk.close())  # in this order: no new call once leases end


def rules_of(config: Config) -> Rules:
    return {name: frozenset(agent.tools) for name, agent in config.agents.items()}


def models_of(config: Config) -> dict[str, frozenset[ModelKey]]:
    """What each agent may call: its `model` and `fallbackModels`, and nothing else."""
    return {
        name: frozenset((ref.provider, ref.model) for ref in (agent.model, *agent.fallback_models))
        for name, agent in config.agents.items()
    }


def limits_of(config: Config) -> dict[str, int]:
    return {name: provider.concurrency for name, provider in config.llm.providers.items()}


def doors_of(config: Config) -> dict[str, tuple[Rule, ...]]:
    """The allowlist of each agent that has egress."""
    return {
        name: tuple(parse_rule(text) for text in agent.sandbox.egress.allow)
        for name, agent in config.agents.items()
        if agent.sandbox.egress is not None
    }


def reply(rules: Rules, doors: Doors, key: bytes, header: Header, body: bytes) -> HopReply:
    """The sealed decision about one request. Malformed if it can't be read."""
    method = f"{header.service}.{header.method}"
    if method == EGRESS_METHOD:
        decision = doors.decide(header.agent, body)
    else:
        decision = decide(rules, header.agent, method, tool_named(method, body))
    seal = sign_verdict(key, request_digest(header, body), decision.allowed, decision.reason)
    return HopReply(verdict=seal, denied="" if decision.allowed else decision.reason)
