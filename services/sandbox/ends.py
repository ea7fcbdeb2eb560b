"""Finds out why a container ended: asks the engine for its state and for what it remembers of the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from beige.errors import Failed
from services.sandbox import failure
from services.sandbox.channel import ChannelLost
from services.sandbox.engine import Container, Engine
from services.sandbox.failure import EngineError

SETTLE_S = 2.0
"""How long the engine may take to learn of a death that we saw before it."""


@dataclass(frozen=True)
class End:
    """How a container was found when it had ended."""

    container: Container
    for_memory: bool

    def __str__(self) -> str:
        return f"{self.container.state}{', out of memory' if self.for_memory else ''}"


async def why_lost(
    engine: Engine, agent: str, container: str, error: ChannelLost, replaced: Callable[[], End | None]
) -> Failed:
    """Why a command's channel broke, as far as the engine knows. `container`: its id. `replaced`: the end of
    the one that was replaced last, which another caller may have had done before we asked."""
    seen = str(error)
    try:
        found = await _settled(engine, container, SETTLE_S if error.hung_up else 0.0)
        end = replaced()
        if end is None or end.container.id != container:
            end = None if found is None else await end_of(engine, found)
    except EngineError:
        return failure.ended(agent, "running", 0, False, seen)
    if end is None:
        return failure.ended(agent, "missing", 0, False, seen)
    return failure.ended(agent, end.container.state, end.container.exit_code, end.for_memory, seen)


async def end_of(engine: Engine, found: Container) -> End:
    return End(found, await for_memory(engine, found))


async def for_memory(engine: Engine, found: Container) -> bool:
    """Did the kernel kill its first process for memory? Where the engine no longer knows, its state's word
    counts, which also means the first process's children."""
    if found.running or not found.oom_killed:
        return False
    history = await engine.history(found)
    known = failure.ended_for_memory(found.exit_code, found.oom_killed, found.finished, history)
    return found.oom_killed if known is None else known


async def _settled(engine: Engine, container: str, wait_s: float) -> Container | None:
    loop = asyncio.get_running_loop()
    end = loop.time() + wait_s
    found = await engine.inspect(container)
    while found is not None and found.running and loop.time() < end:
        await asyncio.sleep(SETTLE_S / 20)
        found = await engine.inspect(container)
    return found
