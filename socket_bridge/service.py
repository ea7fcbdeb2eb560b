"""The bridge process: one listener per configured agent, every request relayed as `tools.call`."""

from __future__ import annotations

import asyncio

from beige.bus import Bus
from beige.config import load
from beige.messages import ToolCall, ToolResult
from beige.plugins import MAX_TIMEOUT_S
from beige.process import Context
from socket_bridge.desk import Desk
from socket_bridge.hangup import HangupWatch
from socket_bridge.listener import Listener
from socket_bridge.protocol import ToolRequest

TTL_S = MAX_TIMEOUT_S + 30.0
"""A tool's own limit ends a call before this does."""


async def main(context: Context) -> None:
    """Listen for every configured agent until stopped."""
    config = load(context.home)
    bus = Bus(context.home, context.user)

    async def relay(agent: str, request: ToolRequest) -> ToolResult:
        body = ToolCall(request.tool, request.args, request.cwd)
        result = await bus.call("tools.call", body, agent=agent, token=request.token, ttl_s=TTL_S)
        assert isinstance(result, ToolResult)
        return result

    hangups = HangupWatch(asyncio.get_running_loop())
    listeners = [Listener(context.home, Desk(agent, relay), hangups) for agent in config.agents]
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
