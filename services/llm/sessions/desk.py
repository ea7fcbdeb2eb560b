"""Serves the operators' calls about sessions: list, look at, read, copy and remove."""

from __future__ import annotations

from collections.abc import Collection

from beige.bus import Request
from beige.bus.serving import Handler
from beige.errors import NotFound
from beige.messages.base import AgentRef
from beige.messages.llm import ForkRequest, HistoryRequest, SessionInfo, SessionList, SessionsRequest
from beige.paths import Home
from beige.sessions import check_id
from services.llm.sessions.catalogue import Catalogue
from services.llm.sessions.files import Sessions
from services.llm.settings.desk import SettingsDesk


class Desk:
    def __init__(
        self, home: Home, agents: Collection[str], sessions: Sessions, settings: SettingsDesk
    ) -> None:
        self._agents, self._sessions, self._settings = agents, sessions, settings
        self._catalogue = Catalogue(home.sessions)

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "llm.sessions": self.latest,
            "llm.session": self.info,
            "llm.history": self.history,
            "llm.fork": self.fork,
            "llm.remove": self.remove,
        }

    async def latest(self, request: Request, body: SessionsRequest) -> SessionList:
        check_agent(request, self._agents)
        return SessionList(*await self._catalogue.latest(request.agent, body.limit))

    async def info(self, request: Request, body: AgentRef) -> SessionInfo:
        check_agent(request, self._agents)
        return await self._catalogue.info(request.agent, request.session)

    async def history(self, request: Request, body: HistoryRequest) -> SessionInfo:
        check_agent(request, self._agents)
        return await self._catalogue.history(request.agent, request.session, body.after, request.send)

    async def fork(self, request: Request, body: ForkRequest) -> SessionInfo:
        check_agent(request, self._agents)
        return await self._catalogue.fork(request.agent, request.session, check_id(body.to), body.prompts)

    async def remove(self, request: Request, body: AgentRef) -> SessionInfo:
        """What was removed."""
        check_agent(request, self._agents)
        info = await self._catalogue.info(request.agent, request.session)
        await self._sessions.remove(request.agent, request.session)
        await self._settings.forget(request.agent, request.session)
        return info


def check_agent(request: Request, agents: Collection[str]) -> None:
    """Whoever calls may name any agent; a directory is made and read only for those there are."""
    if request.agent not in agents:
        raise NotFound(f"there is no agent {request.agent!r}; configured: {', '.join(agents) or 'none'}")
