"""Wires the gateway: configuration, bus, tokens, prompts, endpoints, servers."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
from starlette.routing import Router
from starlette.types import ASGIApp

from beige import __version__
from beige.bus import Bus
from beige.config import Config, load
from beige.paths import Home
from beige.process import Context
from services.gateway.access import door
from services.gateway.api import no_such_path, routes
from services.gateway.guard import Guard
from services.gateway.openai import routes as openai_routes
from services.gateway.openai.turns import Turns
from services.gateway.openapi import document
from services.gateway.prompts import Prompts
from services.gateway.routes import ENDPOINTS
from services.gateway.server import Servers
from services.gateway.tokens import Tokens


class Gateway:
    """What the endpoints work with."""

    def __init__(self, home: Home, config: Config, bus: Bus, stop: asyncio.Event) -> None:
        self.home, self.config, self.bus = home, config, bus
        self.tokens = Tokens(home)
        self.prompts = Prompts(bus)
        self.openai = Turns(home.openai_conversations)
        self.openapi = msgspec.json.encode(document(ENDPOINTS, __version__))
        self.since, self.started = time.monotonic(), int(time.time())
        self.servers = Servers(home, config.gateway, self._app())
        self._stop = stop

    def problem(self) -> str:
        """What is wrong with it, in words; empty if nothing is."""
        return self.servers.problem or ("" if self.bus.connected else "no connection to the bus")

    def stop(self) -> None:
        """End this process in an orderly way."""
        self._stop.set()

    def _app(self) -> ASGIApp:
        settings = self.config.gateway
        endpoints = (*ENDPOINTS, *openai_routes.ENDPOINTS)
        router = Router(routes(self, endpoints), redirect_slashes=False, default=no_such_path)
        return Guard(router, door(settings), self.tokens, settings.max_body, settings.read_timeout_s)


async def main(context: Context) -> None:
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config = load(context.home)
    bus = Bus(context.home, context.user)
    gateway = Gateway(context.home, config, bus, context.stop)
    await bus.start()
    try:
        await gateway.servers.start()
        context.ready()
        await context.stop.wait()
        await gateway.prompts.stop()
        await gateway.servers.stop()
    finally:
        await gateway.openai.close()
        await bus.close()
