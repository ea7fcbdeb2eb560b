"""Finds out why a container ended: asks the engine for its state and for what it remembers of the end."""

from __future__ import annotations

import asyncio

from beige.errors import Failed
from services.sandbox import failure
from services.sandbox.channel import ChannelLost
from services.sandbox.engine import Container, Engine
from services.sandbox.failure import EngineError

SETTLE_S = 2.0
"""How long the engine may take to learn of a death that we saw before it."""


async def why_lost(engine: Engine, agent: str, container: str, error: ChannelLost) -> Failed:
    """Why a command's channel broke, as far as the engine knows."""
    seen = str(error)
    try:
        found = await _settled(engine, container, SETTLE_S if error.hung_up else 0.0)
        if found is None:
            return failure.ended(agent, "missing", 0, False, seen)
        return failure.ended(agent, found.state, found.exit_code, await for_memory(engine, found), seen)
    except EngineError:
        return failure.ended(agent, "running", 0, False, seen)


async def for_memory(engine: Engine, found: Container) -> bool:
    """Did the kernel kill its first process for memory? Where the engine no longer knows, its state's word
    counts, which also means the first process's children."""
    if found.running or not found.oom_killed:
        return False
    history = await engine.history(found)
    known = failure.ended_for_memory(found.exit_code, found.oom_killed, found.finished, history)
    return found.oom_killed if known is None else known


async def summary(engine: Engine, found: Container) -> str:
    """Its state, for the log; with the reason if it ended for memory."""
    return f"{found.state}, out of memory" if await for_memory(engine, found) else found.state


async def _settled(engine: Engine, container: str, wait_s: float) -> Container | None:
    loop = asyncio.get_running_loop()
    end = loop.time() + wait_s
    found = await engine.inspect(container)
    while found is not None and found.running and loop.time() < end:
        await asyncio.sleep(SETTLE_S / 20)
        found = await engine.inspect(container)
    return found
