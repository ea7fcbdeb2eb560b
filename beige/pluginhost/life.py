"""Keeps one plugin's process running: starts it again when it dies, with growing pauses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from beige.pluginhost.child import Child
from beige.pluginhost.frames import Frame

STEADY_S = 30.0
BACKOFF_S = (0.0, 0.2, 1.0, 5.0, 15.0, 30.0)
"""Pauses before the restarts after quick deaths; a life of `STEADY_S` starts the row again."""

C = TypeVar("C", bound=Child)


class Life(Generic[C]):
    """`start`, then use `child` while there is one, then `close`."""

    def __init__(
        self,
        name: str,
        load: Frame,
        directory: str,
        log: logging.Logger,
        child: Callable[[Callable[[], None]], C],
    ) -> None:
        """`load` is the first frame of each process. `child` makes the host's end of a new one; it calls
        what it is given when that process is over."""
        self.problem = ""
        """Why the plugin is not loaded and will not be; empty while there is hope."""
        self.ending = ""
        """How its last process ended; empty as long as none has."""
        self.child: C | None = None
        """The process that is up now."""
        self._name, self._load, self._directory, self._log, self._new = name, load, directory, log, child
        self._last: C | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._up = asyncio.Event()
        self._settled = asyncio.Event()

    async def start(self) -> None:
        """Returns when the plugin is loaded, or `problem` says why it is not."""
        self._task = asyncio.create_task(self._live(), name=f"plugin-{self._name}")
        await self._settled.wait()

    async def close(self) -> None:
        """Idempotent; afterwards no process is left."""
        self._closing = True
        if self.child is not None:
            await self.child.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._last is not None:
            await self._last.kill()

    async def wait_up(self, seconds: float) -> C | None:
        """The process that is up, waiting for one that is being started; None if it takes too long."""
        if self.child is None and not self.problem:
            try:
                async with asyncio.timeout(seconds):
                    await self._up.wait()
            except TimeoutError:
                pass
        return self.child

    def _down(self) -> None:
        self.child = None
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
            self.ending = problem
            self._log.error("plugin lost its process, starting it again: %s", problem)
            await asyncio.sleep(BACKOFF_S[min(deaths, len(BACKOFF_S) - 1)])
            deaths += 1

    async def _one_life(self) -> str:
        """From start to end; why it ended."""
        child = self._last = self._new(self._down)
        problem, ending = "", ""
        try:
            problem = await child.start(self._load, self._directory)
            if child.was_loaded:
                self._settled.set()
                if not child.is_over:
                    self.child = child
                    self._up.set()
                    await child.ended()
        except OSError as error:
            problem = f"its process could not be started ({error.strerror})"
        finally:
            ending = await child.kill()
        return problem or ending
