"""The tools process: plugins loaded from the configuration, `tools.call` and `tools.hook` served on the
bus."""

from __future__ import annotations

from beige.bus import Bus, Request
from beige.config import load
from beige.messages.tools import HookCall, HookResult, ToolCall, ToolResult
from beige.process import Context
from services.tools.host import build
from services.tools.plugin_process import CALLS_PER_PLUGIN, HOOKS_PER_PLUGIN


async def main(context: Context) -> None:
    """Load every plugin, then serve until stopped. A plugin that doesn't load harms no other."""
    config = load(context.home, secrets=frozenset({"tools"}))
    host = build(config, context.home, context.log)

    async def call(request: Request, body: ToolCall) -> ToolResult:
        return await host.call(
            body, request.outcome, agent=request.agent, session=request.session, channel=request.channel
        )

    async def hook(request: Request, body: HookCall) -> HookResult:
        return await host.hook(
            body, request.outcome, agent=request.agent, session=request.session, channel=request.channel
        )

    bus = Bus(context.home, context.user)
    capacity = (CALLS_PER_PLUGIN + HOOKS_PER_PLUGIN) * (len(config.plugins) + 1)
    bus.serve("tools", {"tools.call": call, "tools.hook": hook}, capacity=capacity)
    try:
        await host.start()
        await bus.start()
        context.ready()
        await context.stop.wait()
    finally:
        await bus.close()
        await host.close()
