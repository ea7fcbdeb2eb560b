"""One plugin's tools: limits, and what the caller is told. Its process is kept alive by `Life`.

A plugin that dies, hangs or speaks nonsense loses its process; nobody else's calls are touched.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict

from beige.errors import Failed, Overloaded, Unavailable
from beige.pluginhost.life import Life
from beige.plugins import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S
from services.tools import frames
from services.tools.link import Link

CALLS_PER_AGENT = 8
"""Calls of one agent inside one plugin; more wait, so that one agent can't take every thread."""
CALLS_PER_PLUGIN = 64
"""Calls held for one plugin, running or waiting; more are refused, so that a plugin that hangs
can't fill the service."""
WAIT_READY_S = 5.0
"""How long a call waits for a plugin that is being restarted."""
TIMED_OUT = 124


class PluginProcess:
    """One plugin. `start`, then `call` any number of times, then `close`."""

    def __init__(self, load: frames.Load, log: logging.Logger) -> None:
        self.name = load.name
        self._log = log
        self._life = Life(load.name, load, load.data_dir, log, lambda on_end: Link(log, on_end))
        self._held = 0
        self._numbers = itertools.count(1)
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(CALLS_PER_AGENT)
        )

    @property
    def is_up(self) -> bool:
        return self._life.child is not None

    @property
    def problem(self) -> str:
        """Why the plugin is not loaded and will not be; empty while there is hope."""
        return self._life.problem

    async def start(self) -> None:
        """Returns when the plugin is loaded, or `problem` says why it is not."""
        await self._life.start()

    async def close(self) -> None:
        """Idempotent; afterwards no process is left."""
        await self._life.close()

    async def call(
        self, tool: str, args: list[str], *, agent: str, session: str, channel: str, cwd: str
    ) -> frames.Done:
        """The tool's result, also when it took too long. Failed: the plugin is not loaded, or its
        process ended during the call. Unavailable: it is being restarted. Overloaded."""
        if self._held >= CALLS_PER_PLUGIN:
            raise Overloaded(f"plugin '{self.name}' has {CALLS_PER_PLUGIN} calls already")
        self._held += 1
        try:
            async with self._slots[agent]:
                return await self._call(tool, args, agent, session, channel, cwd)
        finally:
            self._held -= 1

    async def _call(
        self, tool: str, args: list[str], agent: str, session: str, channel: str, cwd: str
    ) -> frames.Done:
        link = await self._loaded()
        limit = min(link.timeouts.get(tool, DEFAULT_TIMEOUT_S), MAX_TIMEOUT_S)
        call = frames.Call(next(self._numbers), tool, args, agent, session, channel, cwd)
        try:
            async with asyncio.timeout(limit):
                return await link.call(call)
        except TimeoutError:
            self._log.warning("tool %s was ended after %g s", tool, limit, extra={"agent": agent})
            return frames.Done(call.id, "", f"tool '{tool}' was ended after {limit:g} s", TIMED_OUT)

    async def _loaded(self) -> Link:
        if self.problem:
            raise Failed(f"plugin '{self.name}' is not loaded: {self.problem}", executed="no")
        link = await self._life.wait_up(WAIT_READY_S)
        if link is None:
            raise Unavailable(f"plugin '{self.name}' is being restarted")
        return link
