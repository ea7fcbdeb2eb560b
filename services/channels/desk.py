"""What one channel may ask for, carried out on the bus: the wall around a channel's plugin.

The plugin names a conversation and an agent. Which agents those may be is the configuration's word, checked
here, and again by llm and policy; which session a conversation is in is this file's. So a plugin in bad
hands speaks to the agents its channel lists, in sessions of its own, and asks for nothing else
(`tests/attacks/test_channels.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from beige.bus import Bus
from beige.config import ChannelConfig
from beige.errors import Cancelled, Denied, NotFound
from beige.messages.base import AgentRef
from beige.messages.bus import CancelResult
from beige.messages.llm import PromptEvent, PromptRequest, PromptResult, SessionInfo
from beige.messages.session_settings import SessionSettings, SettingsReply, SettingsRequest
from beige.plugins.channels import ConversationStatus
from beige.sessions import turn_options
from services.channels import frames
from services.channels.lanes import Key, Lanes, Room

TOOL_EVENTS = frozenset({"tool_start", "tool_output", "tool_end"})
DELTAS = frozenset({"text_delta", "thinking_delta"})
REFUSALS = 100
"""Agents of which it is logged, once each, that they were asked for: a plugin doesn't fill the log."""
OnEvent = Callable[[PromptEvent], Awaitable[None]]


class Sessions(Protocol):
    """`conversations.Conversations`."""

    async def session(self, agent: str, conversation: str) -> str: ...
    async def renew(self, agent: str, conversation: str) -> str: ...


@dataclass
class _Turn:
    begun: bool = False


class Desk:
    """One channel's."""

    def __init__(
        self,
        channel: str,
        config: ChannelConfig,
        bus: Bus,
        sessions: Sessions,
        room: Room,
        log: logging.Logger,
    ) -> None:
        self._channel, self._agents, self._bus, self._sessions = channel, config.agents, bus, sessions
        self._defaults = SessionSettings(config.defaults.verbose, config.defaults.streaming)
        self._log = log
        self._lanes = Lanes(room)
        self._refused: set[str] = set()
        self._turns: defaultdict[Key, dict[asyncio.Task[PromptResult], _Turn]] = defaultdict(dict)

    @property
    def prompts(self) -> int:
        """How many run or wait."""
        return sum(len(turns) for turns in self._turns.values())

    async def serve(self, ask: frames.AnyAsk, on_event: OnEvent) -> Any:
        """The ask's reply, of its type in `frames.REPLIES`. BeigeError."""
        agent = self._allowed(ask.agent)
        match ask:
            case frames.AskPrompt():
                return await self._prompt(agent, ask, on_event)
            case frames.AskCancel():
                return self._cancel((agent, ask.conversation))
            case frames.AskNewSession():
                return frames.NewSession(await self._sessions.renew(agent, ask.conversation))
            case frames.AskStatus():
                return await self._status(agent, ask.conversation)
            case frames.AskSettings():
                session = await self._sessions.session(agent, ask.conversation)
                return await self._settings(agent, session, ask.set, ask.unset)

    def _allowed(self, agent: str) -> str:
        """Stops a plugin that asks for an agent its channel does not list."""
        wanted = agent or self._agents[0]
        if wanted not in self._agents:
            if len(self._refused) < REFUSALS and wanted not in self._refused:
                self._refused.add(wanted)
                self._log.warning("refused: it asked for agent %r, which it may not speak to", wanted)
            raise Denied(f"channel '{self._channel}' may not speak to agent '{wanted}'")
        return wanted

    # --- prompts --------------------------------------------------------------------------------------

    async def _prompt(self, agent: str, ask: frames.AskPrompt, on_event: OnEvent) -> PromptResult:
        key, turn = (agent, ask.conversation), _Turn()
        task = asyncio.create_task(self._turn(key, turn, ask, on_event), name=f"prompt {self._channel}")
        self._turns[key][task] = turn
        try:
            return await task
        except asyncio.CancelledError:
            if (me := asyncio.current_task()) and me.cancelling():
                raise
            raise Cancelled("the prompt was cancelled", executed="maybe" if turn.begun else "no") from None
        finally:
            del self._turns[key][task]
            if not self._turns[key]:
                del self._turns[key]

    async def _turn(self, key: Key, turn: _Turn, ask: frames.AskPrompt, on_event: OnEvent) -> PromptResult:
        agent, conversation = key
        async with self._lanes.turn(key):
            session = await self._sessions.session(agent, conversation)
            settings = (await self._settings(agent, session)).settings
            hidden = (frozenset() if settings["verbose"].value else TOOL_EVENTS) | (
                frozenset() if ask.deltas else DELTAS
            )
            request = PromptRequest(ask.text, self._defaults, ask.sender)
            turn.begun = True
            async with self._bus.open(
                "llm.prompt", request, **turn_options(agent, session, self._channel)
            ) as stream:
                async for event in stream:
                    if event.kind not in hidden:
                        await on_event(event)
                result: PromptResult = await stream.result()
                return result

    def _cancel(self, key: Key) -> CancelResult:
        turns = list(self._turns.get(key, ()))
        for task in reversed(turns):  # those waiting first, so that none begins in between
            task.cancel()
        return CancelResult(len(turns))

    # --- the session ----------------------------------------------------------------------------------

    async def _status(self, agent: str, conversation: str) -> ConversationStatus:
        session = await self._sessions.session(agent, conversation)
        settings = (await self._settings(agent, session)).settings
        info: SessionInfo | None = None
        try:
            info = await self._bus.call("llm.session", AgentRef(), **self._about(agent, session))
        except NotFound:
            pass
        return ConversationStatus(agent, session, settings, info, self._lanes.busy((agent, conversation)))

    async def _settings(
        self, agent: str, session: str, set_: SessionSettings | None = None, unset: Any = ()
    ) -> SettingsReply:
        body = SettingsRequest(set_ or SessionSettings(), list(unset), self._defaults)
        reply: SettingsReply = await self._bus.call("llm.settings", body, **self._about(agent, session))
        return reply

    def _about(self, agent: str, session: str) -> dict[str, str]:
        return {"agent": agent, "session": session, "channel": self._channel}
