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
from typing import Protocol

from beige.bus import Bus, Request
from beige.config import Config, load
from beige.destinations import Destination, canonical_host
from beige.errors import Malformed, Overloaded
from beige.messages.egress import ConnectRequest, ConnectResult
from beige.process import Context, allow_open_files
from services.egress.dialer import Dialer, Link, Refusal, Refused, Resolve, SystemResolver, refused
from services.egress.flow import Flow, Limits, hello_of
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
    service = Service(
        _dialer(config, resolve or system, refused, context.log), allowance(config), context.log
    )
    allow_open_files(FILES_EACH * sum(allowance(config).values()), context.log)
    bus = Bus(context.home, context.user)
    capacity = sum(allowance(config).values()) + SPARE
    bus.serve("egress", {"egress.connect": service.connect}, capacity=capacity, drain_s=DRAIN_S)
    try:
        await bus.start()
        context.ready()
        await context.stop.wait()
    finally:
        await bus.close()
        system.close()


def allowance(config: Config) -> dict[str, int]:
    """Connections at once, of each agent that has egress."""
    boxes = {name: agent.sandbox.egress for name, agent in config.agents.items()}
    return {name: egress.connections for name, egress in boxes.items() if egress is not None}


def _dialer(config: Config, resolve: Resolve, refused: Refused, log: logging.Logger) -> Opener:
    if config.egress.upstream_proxy is None:
        return Dialer(resolve, refused)
    proxy = configured(config.egress.upstream_proxy, os.environ)
    log.warning("all egress goes through %s, which resolves the names: private addresses behind them are "
                "not refused here", proxy.place)  # fmt: skip
    return ProxyDialer(proxy)


class Service:
    def __init__(self, dialer: Opener, allowance: Mapping[str, int], log: logging.Logger,
                 limits: Limits = Limits()) -> None:  # noqa: B008 - frozen  # fmt: skip
        self._dialer, self._allowance, self._log, self._limits = dialer, allowance, log, limits
        self._open: Counter[str] = Counter()

    async def connect(self, request: Request, body: ConnectRequest) -> ConnectResult:
        """Policy has decided about this very host and port; what it is called there must be the one form, or
        something else could be resolved than was decided."""
        if canonical_host(body.host) != body.host:
            raise Malformed(f"host: {body.host[:64]!r} is not in its one form")
        wanted = Destination(body.host, body.port)
        with self._place(request.agent):
            link = await self._reach(request, wanted)
            return await self._carry(request, wanted, body.scheme, link)

    async def _reach(self, request: Request, wanted: Destination) -> Link:
        try:
            return await self._dialer.open(wanted, request.agent)
        except Refusal as refusal:
            self._log.warning(
                "refused %s to agent %s: it leads to %s", wanted, request.agent, refusal.address
            )
            request.outcome.error = f"{refusal} ({refusal.address})"[:256]
            raise

    async def _carry(self, request: Request, wanted: Destination, scheme: str, link: Link) -> ConnectResult:
        try:
            await request.send(b"")
            return await Flow(request, link, hello_of(wanted, scheme), self._limits).run()
        finally:
            link.writer.transport.abort()

    @contextmanager
    def _place(self, agent: str) -> Iterator[None]:
        """The bridge counts too; this one holds against a bridge in hostile hands."""
        allowed = self._allowance.get(agent, 0)
        if self._open[agent] >= allowed:
            raise Overloaded(f"agent {agent!r} has {allowed} connections open")
        self._open[agent] += 1
        try:
            yield
        finally:
            self._open[agent] -= 1
