"""One plugin's tools and hooks: limits, and what the caller is told. Its process is kept alive by `Life`.

A plugin that dies, hangs or speaks nonsense loses its process; nobody else's calls are touched.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from beige.errors import BeigeError, DeadlineExceeded, Failed, Overloaded, Unavailable
from beige.messages.tools import HookCall
from beige.pluginhost.life import Life
from beige.plugins import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S
from services.tools import frames
from services.tools.link import Link

CALLS_PER_AGENT = 8
"""Calls of one agent inside one plugin; more wait, so that one agent can't take every thread."""
CALLS_PER_PLUGIN = 64
"""Calls held for one plugin, running or waiting; more are refused, so that a plugin that hangs
can't fill the service."""
HOOKS_PER_PLUGIN = 256
"""The same for hooks, which have places of their own: an agent that fills its tool's holds up no prompt
(`test_an_agent_that_fills_a_tool_holds_up_no_hook`). As many as two llm processes serve prompts at once."""
TOLD_PER_PLUGIN = 64
"""The same for notifications: those that hang hold up no hook that decides."""
WAIT_READY_S = 5.0
"""How long a call waits for a plugin that is being restarted."""
TIMED_OUT = 124


class Places:
    """Room for calls of one kind inside one plugin."""

    def __init__(self, plugin: str, most: int) -> None:
        self._plugin, self._most, self._held = plugin, most, 0
        self._of: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(CALLS_PER_AGENT)
        )

    @asynccontextmanager
    async def one(self, agent: str) -> AsyncIterator[None]:
        """Waits while the agent has all of its own. Overloaded if the plugin's are taken."""
        if self._held >= self._most:
            raise Overloaded(f"plugin '{self._plugin}' has {self._most} calls already")
        self._held += 1
        try:
            async with self._of[agent]:
                yield
        finally:
            self._held -= 1


class PluginProcess:
    """One plugin. `start`, then `call` any number of times, then `close`."""

    def __init__(self, load: frames.Load, log: logging.Logger) -> None:
        self.name = load.name
        self._log = log
        self._life = Life(load.name, load, load.data_dir, log, lambda on_end: Link(log, on_end))
        self._tool_places = Places(load.name, CALLS_PER_PLUGIN)
        self._hook_places = Places(load.name, HOOKS_PER_PLUGIN)
        self._told_places = Places(load.name, TOLD_PER_PLUGIN)
        self._told: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)

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
        for task in self._told:
            task.cancel()
        await asyncio.gather(*self._told, return_exceptions=True)
        await self._life.close()

    async def call(
        self, tool: str, args: list[str], *, agent: str, session: str, channel: str, cwd: str
    ) -> frames.Done:
        """The tool's result, also when it took too long. Failed: the plugin is not loaded, or its
        process ended during the call. Unavailable: it is being restarted. Overloaded."""
        async with self._tool_places.one(agent):
            return await self._call(tool, args, agent, session, channel, cwd)

    async def hook(
        self, call: HookCall, *, agent: str, session: str, channel: str, timeout_s: float
    ) -> frames.Answered:
        """Never `failed`: that is Failed, too. DeadlineExceeded after `timeout_s`, waiting included; else as
        `call`."""
        return await self._hook(self._hook_places, call, agent, session, channel, timeout_s)

    async def _hook(
        self, places: Places, call: HookCall, agent: str, session: str, channel: str, timeout_s: float
    ) -> frames.Answered:
        try:
            async with asyncio.timeout(timeout_s), places.one(agent):
                link = await self._loaded()
                answer = await link.hook(frames.Hook(
                    next(self._numbers), call.hook, agent, session, channel, call.text, call.model,
                    sender=call.sender, previous_model=call.previous_model, reason=call.reason,
                ))  # fmt: skip
        except TimeoutError:
            late = f"plugin '{self.name}' did not answer {call.hook} within {timeout_s:g} s"
            raise DeadlineExceeded(late, executed="maybe") from None
        if answer.state == "failed":
            raise Failed(answer.reason)
        return answer

    def tell(self, call: HookCall, *, agent: str, session: str, channel: str, timeout_s: float) -> None:
        """Have the hook run without waiting for it. Failed, Overloaded: as `hook`, if that is known already;
        what goes wrong later goes to the log."""
        if self.problem:
            raise self._not_loaded()
        if len(self._told) >= TOLD_PER_PLUGIN:
            raise Overloaded(f"plugin '{self.name}' has {TOLD_PER_PLUGIN} notifications already")

        async def run() -> None:
            try:
                await self._hook(self._told_places, call, agent, session, channel, timeout_s)
            except BeigeError as error:
                self._log.warning("a notification failed: %s", error, extra={"agent": agent})

        task = asyncio.create_task(run(), name=f"told-{self.name}")
        self._told.add(task)
        task.add_done_callback(self._told.discard)

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
            raise self._not_loaded()
        link = await self._life.wait_up(WAIT_READY_S)
        if link is None:
            raise Unavailable(f"plugin '{self.name}' is being restarted")
        return link

    def _not_loaded(self) -> Failed:
        return Failed(f"plugin '{self.name}' is not loaded: {self.problem}", executed="no")
