"""Decides where an agent may connect to, by its allowlist; and lets an operator learn what it would need.

Learning suspends the list, not the guards of services/egress: private addresses stay out of reach. It
lasts as long as the operator's call, so that it ends with the operator, the time or this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Protocol

import msgspec

from beige.destinations import Destination, Rule, canonical_host, missing_rule, rule_path
from beige.errors import Malformed, NotFound, Overloaded
from beige.messages.egress import ConnectRequest
from beige.messages.policy import LearnItem, LearnRequest, LearnResult
from beige.wire import DECODE_ERRORS
from services.policy.core import Decision

EGRESS_METHOD = "egress.connect"
LEARNING = "learning"
MAX_LEARNED = 1000
"""Destinations told to one learner; a thousand and one are no list a person would write."""

_request = msgspec.msgpack.Decoder(ConnectRequest)


class LearnCall(Protocol):
    """`beige.bus.Request`, as far as it is used here."""

    agent: str
    src: str

    async def send(self, item: LearnItem) -> None: ...
    def items(self) -> AsyncIterator[bytes]: ...


class Learner:
    """What one operator's call has seen so far."""

    def __init__(self) -> None:
        self.seen: dict[Destination, bool] = {}
        """To whether the agent's own rules cover it."""
        self.connections = 0
        self._untold: asyncio.Queue[LearnItem] = asyncio.Queue()

    def note(self, wanted: Destination, listed: bool) -> bool:
        """False if there is no room for it."""
        if wanted not in self.seen:
            if len(self.seen) >= MAX_LEARNED:
                return False
            self.seen[wanted] = listed
            self._untold.put_nowait(LearnItem(str(wanted), listed))
        self.connections += 1
        return True

    async def tell(self, call: LearnCall) -> None:
        while True:
            await call.send(await self._untold.get())

    def result(self) -> LearnResult:
        return LearnResult(sorted(map(str, self.seen)), self.connections)


class Doors:
    """The allowlists of all agents that have egress, and who is learning."""

    def __init__(self, rules: Mapping[str, tuple[Rule, ...]], log: logging.Logger) -> None:
        self._rules, self._log = rules, log
        self._learners: dict[str, Learner] = {}

    def decide(self, agent: str, body: bytes) -> Decision:
        """May the agent make this connection? Malformed if the request can't be read, or names its host
        in another form than the one form: then it could be resolved to something else than was decided."""
        try:
            request = _request.decode(body)
        except DECODE_ERRORS as error:
            raise Malformed(f"{EGRESS_METHOD}: {error}") from None
        if canonical_host(request.host) != request.host:
            raise Malformed(f"host: {request.host[:64]!r} is not in its one form")
        return self._decided(agent, Destination(request.host, request.port))

    def _decided(self, agent: str, wanted: Destination) -> Decision:
        rules = self._rules.get(agent)
        if rules is None:
            return Decision(False, f"Permission denied: agent '{agent}' has no egress (sandbox.egress)")
        rule = next((rule for rule in rules if rule.covers(wanted)), None)
        learner = self._learners.get(agent)
        noted = learner is not None and learner.note(wanted, rule is not None)
        if rule is not None:
            return Decision(True, str(rule))
        if noted:
            return Decision(True, LEARNING)
        return Decision(
            False,
            f"Permission denied: agent '{agent}' may not connect there; "
            f"to allow it, add {missing_rule(agent, wanted)}",
        )

    async def learn(self, request: LearnCall, body: LearnRequest) -> LearnResult:
        """NotFound for an agent without egress, Overloaded if somebody is learning it already."""
        agent = request.agent
        if agent not in self._rules:
            raise NotFound(f"agent {agent!r} has no egress: configure {rule_path(agent)} (it may be [])")
        if agent in self._learners:
            raise Overloaded(f"agent {agent!r} is being learned already")
        learner = self._learners[agent] = Learner()
        self._log.warning(
            "LEARNING: agent %s may connect anywhere for %.0f s, asked by %s",
            agent, body.duration_s, request.src,
        )  # fmt: skip
        telling = asyncio.create_task(learner.tell(request), name=f"learn-{agent}")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(body.duration_s):
                    async for _ in request.items():
                        pass
        finally:
            del self._learners[agent]
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            self._log.warning("learning of agent %s has ended: %d destinations", agent, len(learner.seen))
        return learner.result()
