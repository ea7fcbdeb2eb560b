"""Endpoints about the gateway and the house: health, status, configuration, restart, the document."""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response

from beige import __version__
from beige.config import load
from beige.messages.base import Empty
from beige.messages.bus import BusStats
from services.gateway.api import Call, Endpoint, Shape
from services.gateway.settings import public


class Health(Shape, omit_defaults=False):
    ok: bool
    """The gateway is on the bus and listens where it should."""
    version: str
    problem: str = ""


class Status(Shape, omit_defaults=False):
    version: str
    up_s: float
    running: int
    """Prompts under way that were asked for here."""
    bus: BusStats
    """As `beige status --json` has it."""


class Restarting(Shape, omit_defaults=False):
    restarting: bool


async def health(call: Call) -> Health:
    problem = call.gateway.problem()
    return Health(not problem, __version__, problem)


async def status(call: Call) -> Status:
    stats = await call.gateway.bus.call("bus.stats", Empty(), ttl_s=5.0)
    gateway = call.gateway
    return Status(
        __version__, round(time.monotonic() - gateway.since, 1), len(gateway.prompts.jobs.running), stats
    )


async def config(call: Call) -> dict[str, Any]:
    return public(call.gateway.config)


async def restart(call: Call) -> Restarting:
    """Ends this process once the answer is out; supervisord starts it again. ConfigError (409) if it could
    not start with the configuration as it is now: then it goes on with the one it has."""
    load(call.gateway.home)
    call.gateway.stop()
    return Restarting(True)


async def openapi(call: Call) -> Response:
    return Response(call.gateway.openapi, media_type="application/json")


ENDPOINTS = (
    Endpoint("GET", "/api/health", "Whether the gateway serves; needs no token.", health, public=True,
             reply=Health),
    Endpoint("GET", "/api/status", "The processes on the bus.", status, ("read", "admin"), reply=Status),
    Endpoint("GET", "/api/config", "The configuration, without anything that may be secret.", config,
             ("admin",), reply=dict[str, Any]),
    Endpoint("POST", "/api/gateway/restart", "Start the gateway anew.", restart,
             ("admin",), reply=Restarting, status=202),
    Endpoint("GET", "/api/openapi.json", "This document.", openapi, reply=dict[str, Any]),
)  # fmt: skip
