"""The egress process: the only one with a way to the internet for agents. It holds no key and no Docker.

It executes `egress.connect`, which policy allowed and audit recorded: it resolves the name, refuses what is
not on the internet, connects, and carries the bytes.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from beige.bus import Bus, Request
from beige.config import Config, EgressConfig, load
from beige.config.sizes import size_bytes
from beige.destinations import Destination, canonical_host
from beige.errors import Malformed, Overloaded
from beige.messages.egress import ConnectRequest, ConnectResult
from beige.process import Context, allow_open_files
from services.egress.dialer import Dialer, Link, Refusal, Refused, Resolve, SystemResolver, refused
from services.egress.flow import Flow, Limits, hello_of
from services.egress.hello import Hello
from services.egress.upstream import ProxyDialer, configured

DRAIN_S = 2.0
SPARE = 16
FILES_EACH = 2
"""Of a connection, while its name is being resolved."""


class Opener(Protocol):
    async def open(self, wanted: Destination, agent: str) -> Link: ...


async def main(context: Context, resolve: Resolve | None = None, refused: Refused = refused) -> None:
    """`resolve` and `refused` are for tests, which may not reach the internet: no configuration sets them."""
    config = load(context.home, frozenset({"egress"}))
    system = SystemResolver()
    allowed = allowances(config)
    connections = sum(one.connections for one in allowed.values())
    service = Service(_dialer(config, resolve or system, refused, context.log), allowed, context.log)
    allow_open_files(FILES_EACH * connections, context.log)
    bus = Bus(context.home, context.user)
    bus.serve("egress", {"egress.connect": service.connect}, capacity=connections + SPARE, drain_s=DRAIN_S)
    try:
        await bus.start()
        context.ready()
        await context.stop.wait()
    finally:
        await bus.close()
        system.close()


@dataclass(frozen=True)
class Allowance:
    connections: int
    """At once."""
    limits: Limits
    """Of each."""


NOTHING = Allowance(0, Limits())


def allowances(config: Config) -> dict[str, Allowance]:
    """Of each agent that has egress."""
    boxes = {name: agent.sandbox.egress for name, agent in config.agents.items()}
    return {name: _allowance(egress) for name, egress in boxes.items() if egress is not None}


def _allowance(egress: EgressConfig) -> Allowance:
    limits = Limits(
        idle_s=egress.idle_s, duration_s=egress.duration_s, bytes=size_bytes(egress.transfer_size)
    )
    return Allowance(egress.connections, limits)


def _dialer(config: Config, resolve: Resolve, refused: Refused, log: logging.Logger) -> Opener:
    if config.egress.upstream_proxy is None:
        return Dialer(resolve, refused)
    proxy = configured(config.egress.upstream_proxy, os.environ)
    log.warning("all egress goes through %s, which resolves the names: private addresses behind them are "
                "not refused here", proxy.place)  # fmt: skip
    return ProxyDialer(proxy)


class Service:
    def __init__(self, dialer: Opener, allowed: Mapping[str, Allowance], log: logging.Logger) -> None:
        self._dialer, self._allowed, self._log = dialer, allowed, log
        self._open: Counter[str] = Counter()

    async def connect(self, request: Request, body: ConnectRequest) -> ConnectResult:
        """Policy has decided about this very host and port; what it is called there must be the one form, or
        something else could be resolved than was decided."""
        if canonical_host(body.host) != body.host:
            raise Malformed(f"host: {body.host[:64]!r} is not in its one form")
        wanted = Destination(body.host, body.port)
        with self._place(request.agent) as limits:
            link = await self._reach(request, wanted)
            return await self._carry(request, hello_of(wanted, body.scheme), link, limits)

    async def _reach(self, request: Request, wanted: Destination) -> Link:
        try:
            return await self._dialer.open(wanted, request.agent)
        except Refusal as refusal:
            self._log.warning(
                "refused %s to agent %s: it leads to %s", wanted, request.agent, refusal.address
            )
            request.outcome.error = f"{refusal} ({refusal.address})"[:256]
            raise

    async def _carry(
        self, request: Request, hello: Hello | None, link: Link, limits: Limits
    ) -> ConnectResult:
        try:
            await request.send(b"")
            return await Flow(request, link, hello, limits).run()
        finally:
            link.writer.transport.abort()

    @contextmanager
    def _place(self, agent: str) -> Iterator[Limits]:
        """The bridge counts too; this one holds against a bridge in hostile hands."""
        allowed = self._allowed.get(agent, NOTHING)
        if self._open[agent] >= allowed.connections:
            raise Overloaded(f"agent {agent!r} has {allowed.connections} connections open")
        self._open[agent] += 1
        try:
            yield allowed.limits
        finally:
            self._open[agent] -= 1
