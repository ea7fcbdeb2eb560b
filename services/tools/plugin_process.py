"""Keeps one plugin's process alive and calls its tools: limits, restarts, what the caller is told.

A plugin that dies, hangs or speaks nonsense loses its process; nobody else's calls are touched.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict

from beige.errors import Failed, Overloaded, Unavailable
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
STEADY_S = 30.0
BACKOFF_S = (0.0, 0.2, 1.0, 5.0, 15.0, 30.0)
"""Pauses before the restarts after quick deaths; a life of `STEADY_S` starts the row again."""
TIMED_OUT = 124


class PluginProcess:
    """One plugin. `start`, then `call` any number of times, then `close`."""

    def __init__(self, load: frames.Load, log: logging.Logger) -> None:
        self.name = load.name
        self.problem = ""
        """Why the plugin is not loaded and will not be; empty while there is hope."""
        self._load = load
        self._log = log
        self._link: Link | None = None
        self._last: Link | None = None
        self._life: asyncio.Task[None] | None = None
        self._closing = False
        self._held = 0
        self._up = asyncio.Event()
        self._settled = asyncio.Event()
        self._numbers = itertools.count(1)
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(CALLS_PER_AGENT)
        )

    @property
    def is_up(self) -> bool:
        return self._link is not None

    async def start(self) -> None:
        """Returns when the plugin is loaded, or `problem` says why it is not."""
        self._life = asyncio.create_task(self._live(), name=f"plugin-{self.name}")
        await self._settled.wait()

    async def close(self) -> None:
        """Idempotent; afterwards no process is left."""
        self._closing = True
        if self._link is not None:
            await self._link.close()
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
        if self._last is not None:
            await self._last.kill()

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
        if self._link is None:
            try:
                async with asyncio.timeout(WAIT_READY_S):
                    await self._up.wait()
            except TimeoutError:
                pass
        if self._link is None:
            raise Unavailable(f"plugin '{self.name}' is being restarted")
        return self._link

    def _down(self) -> None:
        self._link = None
        self._up.clear()

    async def _live(self) -> None:
        """Keep a process running until closed. A plugin that never loaded is not tried again."""
        deaths = 0
        while not self._closing:
            started = asyncio.get_running_loop().time()
            problem = await self._one_life()
            if self._closing:
                return
            if not self._settled.is_set():
                self._log.error("plugin is not loaded: %s", problem)
                self.problem = problem
                self._settled.set()
                return
            if asyncio.get_running_loop().time() - started > STEADY_S:
                deaths = 0
            self._log.error("plugin lost its process, starting it again: %s", problem)
            await asyncio.sleep(BACKOFF_S[min(deaths, len(BACKOFF_S) - 1)])
            deaths += 1

    async def _one_life(self) -> str:
        """From start to end; why it ended."""
        link = self._last = Link(self._log, self._down)
        problem, ending = "", ""
        try:
            problem = await link.start(self._load)
            if not problem and not link.is_over:
                self._link = link
                self._up.set()
                self._settled.set()
                await link.ended()
        except OSError as error:
            problem = f"its process could not be started ({error.strerror})"
        finally:
            ending = await link.kill()
        return problem or ending
