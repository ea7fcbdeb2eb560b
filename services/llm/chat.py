"""Serves `llm.chat`: one model call for a client that runs its own loop.

Keys, the agent's models, fallback, leases, budgets and their records are as for a prompt; the
conversation, the system prompt and the tools are the client's, and nothing of them is kept or executed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from beige.bus import Request
from beige.config import AgentConfig
from beige.errors import Denied, Failed, Malformed
from beige.messages.chat import ChatEvent, ChatMessage, ChatRequest, ChatResult, ChatTool
from beige.messages.session_settings import SessionSettings
from services.llm.conversation import Assistant, Block, Hook, Message, Prompt, Text, ToolCall, ToolResult
from services.llm.events import MessageDone, ModelEvent, MovedOn, TextDelta, ThinkingDelta
from services.llm.hooks.attended import attended
from services.llm.hooks.chain import raise_stopped, said
from services.llm.hooks.chain import told as hook_told
from services.llm.hooks.passed import Passed
from services.llm.hooks.review import Reviewer
from services.llm.models.attempts import Models
from services.llm.models.leases import Leases
from services.llm.providers.failures import ModelError
from services.llm.sessions.desk import check_agent
from services.llm.settings.layers import arranged, check, resolve
from services.llm.tools import ToolSpec

log = logging.getLogger("llm")
REFUSED = frozenset({"not_leased", "over_budget"})
"""Kinds of failure that are a decision, not an accident."""
TEXT_PIECE = 64 * 1024


class Chat:
    def __init__(self, agents: Mapping[str, AgentConfig], models: Mapping[str, Models]) -> None:
        self._agents, self._models = agents, models
        self._passed = Passed()

    async def serve(self, request: Request, body: ChatRequest) -> ChatResult:
        """Denied if policy gives no model, or a hook refuses; Failed if none could answer."""
        check_agent(request, self._agents)
        agent = self._agents[request.agent]
        wanted = SessionSettings(model=body.model or None)
        check(agent, wanted)
        conversation = messages(body.messages)
        models = self._models[request.agent].arranged(
            arranged(agent, resolve(agent, wanted, SessionSettings()))
        )
        about = {"agent": request.agent, "session": "", "call": request.call_name}
        async with Reviewer(request, agent.hooks, about) as reviewer:
            if reviewer.listeners("prePrompt"):
                conversation = await self._reviewed(request, reviewer, conversation, models.label)
            model = attended(models.turn(Leases(request, _notices(request)), about), reviewer, models.label)
            try:
                async with aclosing(model.stream(body.system, conversation, specs(body.tools))) as events:
                    return await _answer(request, events)
            except ModelError as error:
                log.warning("chat failed: %s", error, extra=about)
                if error.kind in REFUSED:
                    raise Denied(error.message) from error
                raise Failed(error.message) from error

    async def _reviewed(
        self, request: Request, reviewer: Reviewer, conversation: list[Message], model: str
    ) -> list[Message]:
        """As the agent's hooks leave it. Every message of the user's, not only the last (`hooks.passed`)."""
        found: list[Message] = []
        for message in conversation:
            if isinstance(message, Prompt) and message.text:
                message = Prompt(text=await self._text(request, reviewer, message.text, model))
            found.append(message)
        return found

    async def _text(self, request: Request, reviewer: Reviewer, text: str, model: str) -> str:
        known = self._passed.get(request.agent, text)
        if known is not None:
            return known
        passed, hooks = await reviewer.passed("prePrompt", text, model)
        await _tell_hooks(request, hooks)
        if all(hook.state != "skipped" for hook in hooks):  # done without once is not checked
            self._passed.keep(request.agent, text, passed)
        return passed


async def _answer(request: Request, events: AsyncGenerator[ModelEvent, None]) -> ChatResult:
    async for event in events:
        if not isinstance(event, MessageDone):
            await _tell(request, event)
            continue
        await _tell_hooks(request, event.hooks)
        raise_stopped(event.hooks)
        await _tell(request, event)
        return _result(event)
    raise Failed("the model's answer has no end")


def _notices(request: Request) -> Callable[[str], Awaitable[None]]:
    async def notice(text: str) -> None:
        await request.send(ChatEvent("notice", text=text))

    return notice


async def _tell_hooks(request: Request, hooks: Sequence[Hook]) -> None:
    for text in filter(None, map(hook_told, hooks)):
        await request.send(ChatEvent("notice", text=text))


def specs(tools: list[ChatTool]) -> list[ToolSpec]:
    """Malformed if two have one name."""
    if len({tool.name for tool in tools}) < len(tools):
        raise Malformed("tools: two have the same name")
    return [ToolSpec(tool.name, tool.description, {"type": "object", **tool.parameters}) for tool in tools]


def messages(given: list[ChatMessage]) -> list[Message]:
    """The conversation as every provider takes it: a result for each call, and right after it."""
    reading = _Reading()
    for number, message in enumerate(given):
        reading.take(f"messages[{number}]", message)
    if reading.open:
        raise Malformed(f"messages: no result of the call {next(iter(reading.open))!r}")
    if isinstance(reading.found[-1], Assistant):
        raise Malformed("messages: the last one is the model's own")
    return reading.found


@dataclass
class _Reading:
    found: list[Message] = field(default_factory=list)
    open: dict[str, str] = field(default_factory=dict)
    """Calls without a result yet: id to tool."""

    def take(self, place: str, message: ChatMessage) -> None:
        if message.role == "tool":
            self._result(place, message)
        elif self.open:
            raise Malformed(f"{place}: before it, the call {next(iter(self.open))!r} needs its result")
        elif message.role == "user":
            self.found.append(Prompt(text=message.content))
        else:
            self._answer(place, message)

    def _answer(self, place: str, message: ChatMessage) -> None:
        calls = [ToolCall(call.id, call.name, call.args) for call in message.tool_calls]
        self.open = {call.id: call.name for call in calls}
        if len(self.open) < len(calls):
            raise Malformed(f"{place}: two calls have the same id")
        content: list[Block] = [Text(message.content)] if message.content else []
        content += calls
        if not content:
            raise Malformed(f"{place}: says nothing")
        self.found.append(
            Assistant(model="", content=content, stop_reason="tool_use" if calls else "end_turn")
        )

    def _result(self, place: str, message: ChatMessage) -> None:
        tool = self.open.pop(message.tool_id, None)
        if tool is None:
            raise Malformed(f"{place}: there is no open call {message.tool_id!r}")
        content = [Text(message.content)]
        self.found.append(ToolResult(tool_id=message.tool_id, tool=tool, content=list(content),
                                     is_error=message.is_error))  # fmt: skip


async def _tell(request: Request, event: ModelEvent) -> None:
    match event:
        case TextDelta(text):
            await _send_text(request, "text_delta", text)
        case ThinkingDelta(text):
            await _send_text(request, "thinking_delta", text)
        case MovedOn():
            await request.send(ChatEvent("model_fallback", text=event.reason, model=event.model))
        case MessageDone(message):
            for call in message.tool_calls:
                if call.invalid:
                    await request.send(ChatEvent("notice", text=f"the call of {call.name} is no JSON object"))
                await request.send(ChatEvent("tool_call", tool_id=call.id, tool=call.name, args=call.args))


async def _send_text(request: Request, kind: str, text: str) -> None:
    for at in range(0, len(text), TEXT_PIECE):
        piece = text[at : at + TEXT_PIECE]
        await request.send(ChatEvent("text_delta" if kind == "text_delta" else "thinking_delta", text=piece))


def _result(done: MessageDone) -> ChatResult:
    message = done.message
    return ChatResult(
        text=said(message.text, done.hooks),
        model=message.model,
        stop_reason=message.stop_reason,
        tool_calls=len(message.tool_calls),
        scripted=message.scripted,
        usage=message.usage,
        cost=None if message.cost_nano is None else message.cost_nano / 1e9,
    )
