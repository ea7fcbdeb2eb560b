"""Runs a request as a turn of the session that it belongs to, and remembers where the conversation stands."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from beige.errors import BeigeError, NotFound
from beige.messages.base import AgentRef
from beige.messages.llm import ForkRequest, PromptRequest, SessionInfo
from beige.messages.session_settings import SessionSettings
from beige.sessions import new_id
from services.gateway.api import Call
from services.gateway.jobs import Job
from services.gateway.openai import recognise
from services.gateway.openai.errors import Refused
from services.gateway.openai.recognise import Place, Plan
from services.gateway.openai.remembered import Remembered
from services.gateway.openai.requests import Asked, Said

log = logging.getLogger("gateway")
MAX_PROMPT = 512 * 1024
"""Characters of one prompt (`PromptRequest.text`)."""


@dataclass
class Turn:
    """A turn that runs, and what is to be remembered of it."""

    job: Job
    id: str
    """The response's."""
    place: Place
    """Where the conversation will stand after it."""
    names: Sequence[bytes]
    """Digests that will lead to this place, whatever comes of the turn."""
    root: bytes
    tip: bytes
    """The digest of all that was said before the answer, if the client told all of it; else empty."""
    delivered: bool = field(default=False)
    """The whole answer is on its way to the client."""


class Turns:
    def __init__(self, path: Path) -> None:
        self._remembered = Remembered(path)
        self._busy: Counter[tuple[str, str]] = Counter()
        """Turns under way here, by agent and session."""
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self, call: Call, asked: Asked, response: str) -> Turn:
        """Begin the turn. `call` has the agent, and the session if the client names one of the API's;
        `response` is the answer's id. Refused, or an error of the bus."""
        root = recognise.owner(call.token.digest, call.agent)
        tip, names = b"", list[bytes]()
        if asked.previous:
            session, plan = await self._after_response(call, asked, root)
        elif call.session or asked.key:
            session, plan = await self._in_named(call, asked, root)
            names = [recognise.named(root, "session", session)]
        else:
            session, plan, tip = await self._by_history(call, asked, root)
        before = plan.place or Place(session, 0)
        told = recognise.instructions(asked.system)
        text = recognise.prompt(plan, asked.system if told != before.system else "")
        if len(text) > MAX_PROMPT:
            raise Refused(f"the new messages have more than {MAX_PROMPT} characters", "messages",
                          "string_above_max_length")  # fmt: skip
        request = PromptRequest(text, settings=SessionSettings(thinking_level=asked.thinking))
        job = call.gateway.prompts.start(call.agent, session, call.channel, request)
        self._busy[call.agent, session] += 1
        place = Place(session, before.turns + 1, told or before.system)
        return Turn(job, response, place, names, root, tip)

    async def delivered(self, turn: Turn, text: str) -> None:
        """The whole answer is about to be sent: the client's next request holds it, or the response's id."""
        keys = [recognise.named(turn.root, "response", turn.id), *turn.names]
        if turn.tip:
            keys += recognise.chain(turn.tip, [Said("assistant", text)])
        await self._remembered.keep(dict.fromkeys(keys, turn.place))
        turn.delivered = True

    def left(self, turn: Turn) -> None:
        """The client has its answer, or has gone: then the turn ends, and can be gone on from."""
        task = asyncio.get_running_loop().create_task(self._leave(turn), name=f"left {turn.job.id}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._remembered.close()

    async def _leave(self, turn: Turn) -> None:
        if not turn.job.done:
            turn.job.cancel()
        try:
            await turn.job.ended()
        except BeigeError as error:
            log.debug("a turn of an OpenAI client ended: %s", error)
        finally:
            self._busy.subtract([(turn.job.agent, turn.job.session)])
            self._busy = +self._busy
        if not turn.delivered and turn.job.accepted:
            keys = [*turn.names, *([turn.tip] if turn.tip else [])]
            await self._remembered.keep(dict.fromkeys(keys, replace(turn.place, cut=True)))

    # --- which session -------------------------------------------------------------------------------

    async def _by_history(self, call: Call, asked: Asked, root: bytes) -> tuple[str, Plan, bytes]:
        keys = recognise.chain(root, asked.said)
        known = await self._remembered.find(keys)
        plan = recognise.plan(asked.said, [known.get(key) for key in keys])
        if plan.place is not None:
            try:
                return await self._go_on(call, plan.place), plan, keys[-1]
            except NotFound:  # the session was removed: what the client knows of it is all there is
                plan = recognise.stranger(asked.said)
        return new_id(), plan, keys[-1]

    async def _after_response(self, call: Call, asked: Asked, root: bytes) -> tuple[str, Plan]:
        key = recognise.named(root, "response", asked.previous)
        place = (await self._remembered.find([key])).get(key)
        missing = Refused(f"previous_response_id: there is no response {asked.previous[:80]!r}",
                          "previous_response_id", "previous_response_not_found")  # fmt: skip
        if place is None:
            raise missing
        try:
            session = await self._go_on(call, place)
        except NotFound:
            raise missing from None
        return session, replace(recognise.stranger(asked.said), place=place)

    async def _in_named(self, call: Call, asked: Asked, root: bytes) -> tuple[str, Plan]:
        """A session that the client names: one of the API's, or the one of its own key, which is made from
        the token, so that no two tokens share one by choosing the same word."""
        session = call.session or f"openai-{recognise.named(root, 'key', asked.key).hex()[:32]}"
        plan = recognise.stranger(asked.said)
        turns = await _turns(call, session)
        if not turns:
            return session, plan
        name = recognise.named(root, "session", session)
        place = (await self._remembered.find([name])).get(name) or Place(session, 0)
        return session, Plan(replace(place, turns=turns), (), plan.fresh)

    async def _go_on(self, call: Call, place: Place) -> str:
        """The session to go on in: the place's own, or a fork of it if it has gone on since, or goes on
        now. NotFound if it is gone."""
        there = replace(call, session=place.session)
        info: SessionInfo = await there.bus("llm.session", AgentRef())
        if info.prompts < place.turns:  # another session of that name
            raise NotFound(f"session {place.session!r} is another one now")
        if info.prompts == place.turns and not self._busy[call.agent, place.session]:
            return place.session
        fork: SessionInfo = await there.bus("llm.fork", ForkRequest(new_id(), place.turns))
        return fork.session


async def _turns(call: Call, session: str) -> int:
    try:
        info: SessionInfo = await replace(call, session=session).bus("llm.session", AgentRef())
    except NotFound:
        return 0
    return info.prompts
