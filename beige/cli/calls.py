"""The command line's own connection to the bus, as user `cli/0`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from beige.bus import Bus
from beige.errors import NotFound, Unavailable
from beige.keys import key_path
from beige.paths import Home
from beige.supervisor.programs import CLI_USER

CONNECT_S = 5.0
CHANNEL = "cli"
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to its end; Ctrl-C cancels it, which cancels the call it is waiting for."""
    logging.getLogger("bus").setLevel(logging.CRITICAL)
    return asyncio.run(work)


@contextlib.asynccontextmanager
async def connected(home: Home) -> AsyncIterator[Bus]:
    """Unavailable, at once, if nothing runs for this home."""
    if not home.bus_socket.exists() or not key_path(home, CLI_USER).exists():
        raise Unavailable(f"beige is not running for {home.root}: start it with `beige up`")
    bus = Bus(home, CLI_USER)
    await bus.start(CONNECT_S)
    try:
        yield bus
    finally:
        await bus.close()


def check_agent(home: Home, agent: str) -> None:
    """NotFound, naming the agents there are, before anything is asked of the bus."""
    from beige.config import source
    from beige.config.problems import suggest

    # Read, not loaded: this terminal may lack the variables that the house was started with.
    agents = source.read(home.config).get("agents")
    if isinstance(agents, dict) and agent not in agents:
        raise NotFound(f"no such agent: {agent!r}; {suggest(agent, agents, kind='agent')}")
