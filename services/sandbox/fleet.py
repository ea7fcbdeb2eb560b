"""All agents' containers of this home: what a restart finds, what an end leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from beige.config import Config
from beige.errors import BeigeError, NotFound
from beige.messages.sandbox import SandboxInfo
from beige.paths import Home
from services.sandbox.containers import Sandbox
from services.sandbox.engine import Engine
from services.sandbox.quota import unused
from services.sandbox.spec import home_digest


class Sandboxes:
    """All agents' containers on this engine."""

    def __init__(
        self, home: Home, config: Config, engine: Engine, seccomp: Mapping[bool, str], log: logging.Logger
    ) -> None:
        """`seccomp`: the profile's JSON text, by whether the agent is root inside."""
        self._home, self._engine, self._log = home, engine, log
        self._sandboxes = {
            name: Sandbox(name, config, home, engine, seccomp[agent.sandbox.root], log)
            for name, agent in config.agents.items()
        }

    def of(self, agent: str) -> Sandbox:
        """NotFound if the config has no such agent."""
        try:
            return self._sandboxes[agent]
        except KeyError:
            raise NotFound(f"no agent {agent!r} in the configuration") from None

    async def list(self) -> list[SandboxInfo]:
        return list(await asyncio.gather(*(one.info() for one in self._sandboxes.values())))

    async def recover(self) -> None:
        """After a start: take up the containers a crashed predecessor left, remove those that ended and
        those of agents that are configured no longer. Only this home's label is looked at."""
        found = await self._engine.list(home_digest(self._home))
        known = [one for one in found if one.agent in self._sandboxes and one.running]
        for one in found:
            if one not in known:
                reason = (
                    "it does not run" if one.agent in self._sandboxes else "no agent of the configuration"
                )
                self._log.info("removing %s: %s", one.name, reason)
                await self._engine.remove(one.id)
        for disk in unused(self._home, frozenset(self._sandboxes), self._log):
            await asyncio.to_thread(disk.detach)
        early = {name for name, one in self._sandboxes.items() if one.config.sandbox.autostart}
        await asyncio.gather(*(self._take_up(agent) for agent in early | {one.agent for one in known}))

    async def _take_up(self, agent: str) -> None:
        try:
            await self._sandboxes[agent].channel()
        except BeigeError as error:
            self._log.warning("the container of %s was not brought up: %s", agent, error)

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self._sandboxes.values()))

    async def remove_all(self) -> None:
        """Remove every container of this home; workspaces stay, those with a quota unmounted."""
        found = await self._engine.list(home_digest(self._home))
        await asyncio.gather(*(self._engine.remove(one.id) for one in found))
        await asyncio.gather(*(one.workspace.detach() for one in self._sandboxes.values()))
