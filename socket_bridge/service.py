"""The bridge process: one listener per configured agent, every request relayed as `tools.call`; and, for
agents with egress, a proxy whose connections are each an `egress.connect`."""

from __future__ import annotations

import asyncio

from beige.bus import Bus
from beige.bus.client import Stream
from beige.config import Config, load
from beige.errors import Unavailable
from beige.messages.egress import ConnectRequest
from beige.messages.tools import ToolCall, ToolResult
from beige.paths import Home
from beige.plugins import MAX_TIMEOUT_S
from beige.process import Context, allow_open_files
from socket_bridge.desk import MAX_CONNECTIONS, Desk, Relay
from socket_bridge.egress import WAITING, Connect, Door
from socket_bridge.egress_listener import EgressListener, remove_stale
from socket_bridge.hangup import HangupWatch
from socket_bridge.listener import Listener
from socket_bridge.protocol import ToolRequest

TTL_S = MAX_TIMEOUT_S + 30.0
"""A tool's own limit ends a call before this does."""
CONNECT_S = 5.0
"""How long a call waits for a broker that is being restarted."""
SPARE_S = 120.0
"""What a connection to the internet may take beside its own duration, which egress ends: to be decided, to be
written down, to be made."""
EGRESS_ITEMS, EGRESS_BYTES = 16, 64 * 1024


def relay_over(bus: Bus) -> Relay:
    """Requests as `tools.call`. BeigeError: as the bus says, and Unavailable after `CONNECT_S` without it."""

    async def relay(agent: str, request: ToolRequest) -> ToolResult:
        body = ToolCall(request.tool, request.args, request.cwd)
        call = bus.open(
            "tools.call", body, agent=agent, token=request.token, ttl_s=TTL_S, window_items=0, window_bytes=0
        )
        try:
            async with asyncio.timeout(CONNECT_S) as connecting, call:
                connecting.reschedule(None)  # entered: the call is on its way
                result = await call.result()
        except TimeoutError:
            raise Unavailable("the gateway's bus is down") from None
        assert isinstance(result, ToolResult)
        return result

    return relay


def connect_over(bus: Bus, duration_s: float) -> Connect:
    """A proxy connection as `egress.connect`. The windows are small: all of an agent's connections together
    must not fill what the broker keeps for this process."""

    def connect(agent: str, request: ConnectRequest, token: str) -> Stream:
        return bus.open(
            "egress.connect", request, agent=agent, token=token, ttl_s=duration_s + SPARE_S,
            window_items=EGRESS_ITEMS, window_bytes=EGRESS_BYTES,
        )  # fmt: skip

    return connect


def egress_listeners(home: Home, config: Config, bus: Bus) -> list[EgressListener]:
    found = []
    for name, agent in config.agents.items():
        if agent.sandbox.egress is None:
            remove_stale(home, name)
        else:
            egress = agent.sandbox.egress
            door = Door(name, connect_over(bus, egress.duration_s), egress.connections)
            found.append(EgressListener(home, door))
    return found


def files_needed(config: Config) -> int:
    """Descriptors, if every agent has all the connections it may."""
    boxes = [agent.sandbox.egress for agent in config.agents.values()]
    proxied = sum(egress.connections + WAITING for egress in boxes if egress is not None)
    return MAX_CONNECTIONS * len(boxes) + proxied


async def main(context: Context) -> None:
    """Listen for every configured agent until stopped."""
    config = load(context.home)
    allow_open_files(files_needed(config), context.log)
    bus = Bus(context.home, context.user)

    hangups = HangupWatch(asyncio.get_running_loop())
    listeners: list[Listener | EgressListener] = [
        Listener(context.home, Desk(agent, relay_over(bus)), hangups) for agent in config.agents
    ]
    listeners += egress_listeners(context.home, config, bus)
    try:
        await bus.start()
        for listener in listeners:
            await listener.open()
        context.ready()
        await context.stop.wait()
    finally:
        await asyncio.gather(*(listener.close() for listener in listeners))
        hangups.close()
        await bus.close()
