"""Runs prompts on the bus, each as a job that outlives the connection it was asked for on."""

from __future__ import annotations

import asyncio
import logging

from beige.bus import Bus
from beige.errors import BeigeError, Cancelled, Failed, Unavailable
from beige.messages.llm import PromptRequest
from beige.sessions import new_id, turn_options
from services.gateway.jobs import KEEP_S, Job, Jobs

log = logging.getLogger("gateway")
STOP_S = 3.0
"""How long prompts may still run when the gateway stops."""


class Prompts:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.jobs = Jobs()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self, agent: str, session: str, channel: str, request: PromptRequest) -> Job:
        """Ask for a turn; returns at once. Unavailable while the gateway stops, Overloaded."""
        if self._stopping:
            raise Unavailable("the gateway is stopping")
        job = self.jobs.new(agent, session or new_id())
        task = asyncio.get_running_loop().create_task(
            self._run(job, channel, request), name=f"prompt {job.id}"
        )
        job.cancel = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def stop(self) -> None:
        """No new ones; those that run get a moment, then they are cancelled, and say so."""
        self._stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Job, channel: str, request: PromptRequest) -> None:
        try:
            await self._relay(job, channel, request)
        except BeigeError as error:
            job.end(error)
        except asyncio.CancelledError:
            job.end(Cancelled("the prompt was cancelled"))
            raise
        except Exception:
            log.exception("a prompt failed")
            job.end(Failed("internal error in the gateway: see its log"))
        finally:
            self.jobs.ended(job)
            asyncio.get_running_loop().call_later(KEEP_S, self.jobs.forget, job)

    async def _relay(self, job: Job, channel: str, request: PromptRequest) -> None:
        stream = self._bus.open("llm.prompt", request, **turn_options(job.agent, job.session, channel))
        async with stream:
            async for event in stream:
                job.event(event)
            job.end(await stream.result())
