"""Wires the llm service: configuration and providers, sessions, and a turn for each `llm.prompt`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from beige.bus import Bus, Request
from beige.bus.serving import Handler
from beige.config import AgentConfig, Config, load
from beige.config.prices import prices_of
from beige.errors import BeigeError, Cancelled, Denied, Failed, NotFound
from beige.messages.base import AgentRef
from beige.messages.llm import CompactRequest, CompactResult, PromptEvent, PromptRequest, PromptResult
from beige.messages.session_settings import SessionSettings
from beige.paths import Home
from beige.process import Context
from beige.sessions import check_id
from services.llm.chat import Chat
from services.llm.conversation import Assistant, Prompt, TurnEnd
from services.llm.conversation import Context as SessionContext
from services.llm.doors import guarded
from services.llm.events import MovedOn
from services.llm.hooks.attended import attended
from services.llm.hooks.chain import said
from services.llm.hooks.review import Reviewer
from services.llm.models.attempts import Models, TurnModels
from services.llm.models.leases import Leases
from services.llm.providers.base import Provider
from services.llm.providers.registry import open_providers
from services.llm.sessions.desk import Desk, check_agent
from services.llm.sessions.files import Session, Sessions, Waiting
from services.llm.settings.desk import SettingsDesk
from services.llm.settings.layers import arranged, check
from services.llm.toolbox import Toolbox, read_text
from services.llm.tools import cut
from services.llm.turn.again import answered_before
from services.llm.turn.compaction import compacted, context_tokens, plan
from services.llm.turn.core import Turn
from services.llm.turn.outbox import Outbox
from services.llm.turn.prompt import AGENTS_MD, AGENTS_MD_LIMIT, plugin_tools, system_prompt
from services.llm.turn.runner import Runner
from services.llm.turn.summary import summarise

log = logging.getLogger("llm")
CAPACITY = 128
"""Calls served at once: prompts, those that wait for their session, and what operators ask."""
SUMMARY_SHOWN = 4096
"""Characters of a summary in the answer to `llm.compact`."""


class Service:
    def __init__(self, home: Home, config: Config, providers: Mapping[str, Provider]) -> None:
        self._agents = config.agents
        self._plugins = {name: plugin_tools(home, config, agent) for name, agent in config.agents.items()}
        prices = prices_of(config)
        self._models = {name: Models(agent, providers, prices) for name, agent in config.agents.items()}
        self._sessions = Sessions(home.sessions)
        self.settings = SettingsDesk(home.sessions, config.agents)
        self._chat = Chat(config.agents, self._models)
        self._desk = Desk(home, config.agents, self._sessions, self.settings)

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "llm.prompt": self.prompt,
            "llm.compact": self.compact,
            "llm.settings": self.settings.serve,
            "llm.chat": self._chat.serve,
            **self._desk.handlers,
        }

    async def prompt(self, request: Request, body: PromptRequest) -> PromptResult:
        """One prompt to one session of `request.agent`; a session without a name is a new one."""
        check_agent(request, self._agents)
        notice = _notices(request)
        check(self._agents[request.agent], body.settings)
        session_id = check_id(request.session)
        request.movable = True
        async with self._sessions.open(request.agent, session_id, notice) as session:
            request.movable = False
            if any(isinstance(entry, TurnEnd) for entry in session.repaired):
                await notice("the last turn of this session was interrupted; the conversation goes on")
            if (known := answered_before(session.id, session.entries, request.call_name)) is not None:
                return known
            return await self._turn(request, body, session)

    async def compact(self, request: Request, body: CompactRequest) -> CompactResult:
        """Summarise all that a session has, between two of its prompts."""
        check_agent(request, self._agents)
        await self._desk.info(request, AgentRef())  # a session that is not there is not made
        async with self._sessions.open(request.agent, request.session, _notices(request)) as session:
            agent, models = await self._arranged(request, session, SessionSettings())
            async with Reviewer(request, agent.hooks, _about(request, session)) as reviewer:
                return await self._compact(request, body.instructions, session, models, reviewer)

    async def _compact(
        self, request: Request, wishes: str, session: Session, models: Models, reviewer: Reviewer
    ) -> CompactResult:
        """To the agent's hooks the wishes are a prompt, and what is shown of the summary an answer."""
        if models.limits is None:
            raise Failed("a script can't summarise", executed="no")
        if wishes:
            wishes, _ = await reviewer.passed("prePrompt", wishes, models.label)
        asked = plan(session.entries, models.limits, "asked", context_tokens(session.entries), wishes)
        if asked is None:
            raise Failed("there is nothing to summarise yet", executed="no")

        async def moved(event: MovedOn) -> None:
            await request.send(PromptEvent(kind="model_fallback", text=event.reason, model=event.model))

        answer = await summarise(self._model(request, session, models), asked.text, moved)
        entry, event = compacted(asked, answer)
        session.append(entry)
        await session.sync()
        await request.send(event)
        shown = cut(answer.text, SUMMARY_SHOWN)
        heard = await reviewer.review("postResponse", shown, answer.model)
        return CompactResult(session.id, said(shown, heard), asked.messages)

    async def _turn(self, request: Request, body: PromptRequest, session: Session) -> PromptResult:
        agent, models = await self._arranged(request, session, body.settings)

        async def system() -> str:
            agents_md = await _agents_md(request, session)
            return system_prompt(request.agent, agent, self._plugins[request.agent], agents_md)

        reviewer = Reviewer(request, agent.hooks, _about(request, session), body.sender)
        turn = Turn(session.id, session.entries, model=models.label, max_turns=agent.max_turns,
                    scripted=models.scripted, limits=models.limits)  # fmt: skip
        toolbox = Toolbox(request, request.send, deadline_s=agent.sandbox.deadline_s)
        spoke = [entry.model for entry in session.entries if isinstance(entry, Assistant)]
        model = attended(self._model(request, session, models), reviewer, models.label, spoke)
        prompt = Prompt(text=body.text, channel=request.channel, call=request.call_name, sender=body.sender,
                        hooks=reviewer.deciding("prePrompt"))  # fmt: skip
        listening = reviewer if reviewer.listeners("prePrompt") else None
        try:
            async with reviewer, Outbox(request.send) as outbox:
                runner = Runner(turn, system, model, toolbox, session, outbox.send, listening)
                return await runner.run(prompt)
        except (Failed, Denied) as error:
            log.warning("turn failed: %s", error, extra=_about(request, session))
            raise

    async def _arranged(
        self, request: Request, session: Session, channel: SessionSettings
    ) -> tuple[AgentConfig, Models]:
        """The agent and its models as the session's settings want them."""
        settings = await self.settings.resolved(request.agent, session.id, channel)
        for text in settings.notices:
            await _notices(request)(text)
        agent = arranged(self._agents[request.agent], settings)
        return agent, self._models[request.agent].arranged(agent)

    def _model(self, request: Request, session: Session, models: Models) -> TurnModels:
        return models.turn(Leases(request, _notices(request)), _about(request, session))


def _notices(request: Request) -> Waiting:
    async def notice(text: str) -> None:
        await request.send(PromptEvent(kind="notice", text=text))

    return notice


def _about(request: Request, session: Session) -> dict[str, str]:
    """For the log."""
    return {"agent": request.agent, "session": session.id, "call": request.call_name}


async def _agents_md(request: Request, session: Session) -> str:
    """The workspace's AGENTS.md as it was when the session began; empty if there is none. The agent
    may have written it: it steers that agent alone."""
    for entry in session.entries:
        if isinstance(entry, SessionContext):
            return entry.agents_md
    text = ""
    try:
        text = await read_text(request, AGENTS_MD, AGENTS_MD_LIMIT)
    except NotFound:
        pass
    except Cancelled:
        raise
    except BeigeError as error:
        await request.send(PromptEvent(kind="notice", text=f"AGENTS.md could not be read: {error}"))
        return ""
    session.append(SessionContext(agents_md=text))
    return text


async def main(context: Context) -> None:
    config = load(context.home, secrets=frozenset({"llm"}))
    providers = open_providers(context.home, config.llm.providers)
    service = Service(context.home, config, providers)
    bus = Bus(context.home, context.user)
    bus.serve("llm", guarded(service.handlers, config.channels), capacity=CAPACITY)
    async with contextlib.AsyncExitStack() as closing:
        for provider in providers.values():
            closing.push_async_callback(provider.close)
        await bus.start()
        closing.push_async_callback(bus.close)
        context.ready()
        await context.stop.wait()
