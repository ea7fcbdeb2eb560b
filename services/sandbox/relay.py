"""Keeps `/beige/relay` running in the container of an agent that has egress, as a command like any other.

The agent may kill it, as it may kill anything of its own uid: it is started again. Nothing of the container's
walls depends on it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from contextlib import suppress

from services.sandbox.channel import CannotRun, Channel, ChannelLost, Command
from services.sandbox.failure import EngineError

PROGRAM = "/beige/relay"
READY_S = 5.0
"""How long the first command waits for it; takes a millisecond."""
AGAIN_S = 1.0
RUN_S = 30 * 24 * 3600.0
"""A command has an end; the next one follows."""
OUTPUT_BYTES = 4096


class Relay:
    """`start` for each new channel, `stop` before the channel is closed."""

    def __init__(self, agent: str, log: logging.Logger) -> None:
        self._agent, self._log = agent, log
        self._ready = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    async def start(self, channel: Channel) -> None:
        """Returns when it listens, so that the agent's first command finds it."""
        await self.stop()
        self._ready.clear()
        self._keeping = asyncio.create_task(self._keep(channel), name=f"relay-{self._agent}")
        try:
            async with asyncio.timeout(READY_S):
                await self._ready.wait()
        except TimeoutError:
            self._log.warning("the relay of agent %s does not listen: its egress will not work", self._agent)

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None

    async def _keep(self, channel: Channel) -> None:
        command = Command((PROGRAM,), {}, "/", timeout_s=RUN_S, limit_bytes=OUTPUT_BYTES, keep=False)

        async def listening(_stream: str, _data: bytes) -> None:
            self._ready.set()

        reported = False
        while channel.alive:
            with suppress(ChannelLost, EngineError):
                try:
                    await channel.run(command, listening)
                except CannotRun as error:
                    if not reported:
                        self._log.error("the relay of agent %s can't be started: %s", self._agent, error)
                    if error.errno == errno.ENOENT:
                        return  # an image of somebody else's
                    reported = True
            await asyncio.sleep(AGAIN_S)
