"""Wires session settings: answers `llm.settings`, and tells a prompt what holds for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from beige.bus import Request
from beige.config import AgentConfig
from beige.errors import Malformed, NotFound
from beige.messages.session_settings import SessionSettings, SettingsReply, SettingsRequest
from beige.sessions import check_id
from services.llm.settings import layers
from services.llm.settings.file import SettingsFile


class SettingsDesk:
    def __init__(self, directory: Path, agents: Mapping[str, AgentConfig]) -> None:
        self._file, self._agents = SettingsFile(directory), agents

    async def serve(self, request: Request, body: SettingsRequest) -> SettingsReply:
        """What holds for `request.session`, after the changes the body asks for. The session need not
        have been used yet."""
        agent = self._agents.get(request.agent)
        if agent is None:
            raise NotFound(f"there is no agent {request.agent!r}")
        if not request.session:
            raise Malformed("session: settings belong to a session; name one")
        session = check_id(request.session)
        layers.check(agent, body.set)
        layers.check(agent, body.defaults)
        notices: list[str] = []
        if body.unset or body.set != SessionSettings():
            _, notices = await asyncio.to_thread(
                self._file.change, request.agent, session,
                lambda old: layers.changed(old, body.set, body.unset),
            )  # fmt: skip
        resolved = await self.resolved(request.agent, session, body.defaults)
        return SettingsReply(resolved.settings, notices + resolved.notices)

    async def resolved(self, agent: str, session: str, channel: SessionSettings) -> layers.Resolved:
        """For one prompt; never fails over a damaged file or a model that is gone: its notices tell."""
        layer, notices = await asyncio.to_thread(self._file.read, agent, session)
        resolved = layers.resolve(self._agents[agent], channel, layer)
        resolved.notices[:0] = notices
        return resolved

    async def forget(self, agent: str, session: str) -> None:
        """The session is removed: another one of its name begins without its settings."""
        layer, _ = await asyncio.to_thread(self._file.read, agent, session)
        if layer != SessionSettings():
            await asyncio.to_thread(self._file.change, agent, session, lambda old: SessionSettings())
