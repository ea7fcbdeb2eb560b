"""The policy process: serves the hop AUTHORIZE and signs each verdict, a no as well as a yes; and
leases for model calls, within the budgets."""

from __future__ import annotations

import asyncio
import time

from beige import wire
from beige.bus import Bus, Handler, HopReply, Request
from beige.config import load
from beige.config.prices import prices_of
from beige.errors import BeigeError
from beige.keys import read_seal_key
from beige.messages.base import AgentRef
from beige.messages.policy import BudgetReport
from beige.process import Context
from beige.seals import request_digest, sign_verdict
from beige.wire import Header
from services.policy import ledger_file
from services.policy.budget import day_of
from services.policy.budgets import Budgets
from services.policy.configured import (
    answers_of,
    budgets_of,
    channels_of,
    doors_of,
    hooks_of,
    rules_of,
    slots_of,
)
from services.policy.core import (
    Decision,
    Grants,
    decide,
    decide_channel,
    decide_hook,
    decide_model,
    hook_named,
    model_named,
    tool_named,
)
from services.policy.desk import TAKE_UP_S, Desk
from services.policy.egress import EGRESS_METHOD, Doors
from services.policy.ledger_file import LedgerFile

CAPACITY = 4096
"""Calls at once, open leases included: `desk.MAX_LEASES` leaves room to authorize."""
HEALTH_FILE = "provider-health.json"
TICK_S = 1.0


async def main(context: Context) -> None:
    config = load(context.home)
    models = answers_of(config)
    grants = Grants(rules_of(config), models, hooks_of(config), channels_of(config))
    key = read_seal_key(context.home, "verdict")

    doors = Doors(doors_of(config), context.log)

    def authorize(request: Request) -> HopReply:
        return reply(grants, doors, key, request.header, request.body)

    file = LedgerFile(context.home.data / ledger_file.NAME, day_of(time.time()))
    budgets = Budgets(file, budgets_of(config), models, prices_of(config), time.time)
    desk = Desk(budgets, slots_of(config), context.home.data / HEALTH_FILE)

    async def budget(request: Request, body: AgentRef) -> BudgetReport:
        return budgets.report(request.agent, request.session)

    bus = Bus(context.home, context.user)
    handlers: dict[str, Handler] = {
        "policy.lease": desk.lease,
        "policy.budget": budget,
        "policy.learn": doors.learn,
    }
    bus.serve("policy", handlers, capacity=CAPACITY, hops={wire.AUTHORIZE: authorize})
    await bus.start()
    context.ready()
    await _tick_until(context, budgets, desk)
    await asyncio.gather(bus.close(), desk.close())  # in this order: no new call once leases end
    budgets.close()


async def _tick_until(context: Context, budgets: Budgets, desk: Desk) -> None:
    give_up = time.monotonic() + TAKE_UP_S
    while not context.stop.is_set():
        try:
            await asyncio.wait_for(context.stop.wait(), TICK_S)
        except TimeoutError:
            if time.monotonic() > give_up:
                desk.give_up_left_behind()
            try:
                await budgets.tend()
            except (BeigeError, OSError) as error:
                context.log.error("the ledger of budgets can't be brought to disk: %s", error)


def reply(grants: Grants, doors: Doors, key: bytes, header: Header, body: bytes) -> HopReply:
    """The sealed decision about one request. Malformed if it can't be read."""
    decision = decide_channel(grants.channels, header.channel, header.agent)
    if decision.allowed:
        decision = _decide(grants, doors, header.agent, f"{header.service}.{header.method}", body)
    seal = sign_verdict(key, request_digest(header, body), decision.allowed, decision.reason)
    return HopReply(verdict=seal, denied="" if decision.allowed else decision.reason)


def _decide(grants: Grants, doors: Doors, agent: str, method: str, body: bytes) -> Decision:
    if method == EGRESS_METHOD:
        return doors.decide(agent, body)
    model = model_named(method, body)
    if model is not None:
        return decide_model(grants.models, agent, model)
    hook = hook_named(method, body)
    if hook is not None:
        return decide_hook(grants.hooks, agent, hook)
    return decide(grants.tools, agent, method, tool_named(method, body))
