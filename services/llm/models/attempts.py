"""Gets an answer from the agent's models: a lease, an attempt, and the next one when it fails.

A turn knows nothing of it: it gets one stream of events, or one `ModelError`. What to try next is
decided by `fallback`, who may be called by policy (`leases`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from beige.config import AgentConfig
from beige.messages.policy import LeaseReport
from beige.money import ModelKey, Price
from beige.windows import Limits, limits
from services.llm.conversation import Assistant, Message
from services.llm.events import MessageDone, ModelEvent, MovedOn
from services.llm.models import estimate
from services.llm.models.fallback import PAUSES_S, Choice, Pool, Round
from services.llm.models.leases import Cooling
from services.llm.models.wellformed import well_formed
from services.llm.providers.base import ModelRequest, Provider, unique_ids
from services.llm.providers.failures import ModelError
from services.llm.tools import SPECS, ToolSpec

log = logging.getLogger("llm")
NO_PRICES: Mapping[ModelKey, Price] = MappingProxyType({})
WATCHDOG_S = 600.0
"""Longest silence of a model: no event for so long ends the attempt."""


class TakesLeases(Protocol):
    """`leases.Leases`, as far as it is used here."""

    def take(self, provider: str, model: str, input_tokens: int) -> AbstractAsyncContextManager[Granted]: ...


class Granted(Protocol):
    """`leases.Lease`, as far as it is used here."""

    @property
    def max_tokens(self) -> int | None: ...
    async def report(self, report: LeaseReport) -> float: ...


class AttemptFailed(Exception):
    """The model was called and failed. `cooling`: nobody may call it for a while."""

    def __init__(self, error: ModelError, cooling: bool) -> None:
        super().__init__(error.message)
        self.error, self.cooling = error, cooling


class Models:
    """The models of one agent: the primary, then the fallbacks."""

    def __init__(self, agent: AgentConfig, providers: Mapping[str, Provider],
                 prices: Mapping[ModelKey, Price] = NO_PRICES, *, watchdog_s: float = WATCHDOG_S,
                 pauses_s: Sequence[float] = PAUSES_S) -> None:  # fmt: skip
        self.refs = (agent.model, *agent.fallback_models)
        self._by_name, self._prices = providers, prices
        self.providers = [providers[ref.provider] for ref in self.refs]
        self.labels = [self.provider_label(index) for index in range(len(self.refs))]
        self.prices = [prices.get((ref.provider, ref.model)) for ref in self.refs]
        self.watchdog_s, self.pauses_s = watchdog_s, pauses_s

    def arranged(self, agent: AgentConfig) -> Models:
        """The same with the models in the order, and as, a session's settings want them."""
        return Models(agent, self._by_name, self._prices, watchdog_s=self.watchdog_s,
                      pauses_s=self.pauses_s)  # fmt: skip

    def provider_label(self, index: int) -> str:
        return self.providers[index].label(self.refs[index].model)

    @property
    def label(self) -> str:
        """The name of the model a turn begins with."""
        return self.labels[0]

    @property
    def scripted(self) -> bool:
        return self.providers[0].scripted

    @property
    def limits(self) -> Limits | None:
        """Of the model that is asked first; a script has none."""
        return None if self.scripted else limits(self.refs[0])

    def priced(self, index: int, message: Assistant) -> Assistant:
        price = self.prices[index]
        return msgspec.structs.replace(message, cost_nano=price.cost(message.usage)) if price else message

    def turn(self, leases: TakesLeases, told: Mapping[str, Any]) -> TurnModels:
        """For one prompt. `told` goes into the log with each attempt that failed."""
        return TurnModels(self, leases, told)

    def open(
        self,
        index: int,
        system: str,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        most_tokens: int | None = None,
    ) -> AsyncGenerator[ModelEvent, None]:
        """`most_tokens`: the answer must not be longer, whatever its settings say."""
        ref = self.refs[index]
        longest = [tokens for tokens in (ref.max_tokens, most_tokens) if tokens is not None]
        return self.providers[index].stream(
            ModelRequest(
                model=ref.model,
                system=system,
                messages=conversation,
                tools=tools,
                thinking_level=ref.thinking_level,
                max_tokens=min(longest, default=None),
            )
        )


class TurnModels:
    """The models during one prompt."""

    def __init__(self, models: Models, leases: TakesLeases, told: Mapping[str, Any]) -> None:
        self._models, self._leases, self._told = models, leases, told
        self._pool = Pool(models.labels, models.pauses_s)

    def shortened(self) -> None:
        """The conversation is shorter from now on."""
        self._pool.shortened()

    def apart(self) -> TurnModels:
        """For a question beside the conversation: what fails there is not held against the models here."""
        return TurnModels(self._models, self._leases, self._told)

    async def stream(
        self, system: str, conversation: Sequence[Message], tools: Sequence[ToolSpec] = SPECS
    ) -> AsyncGenerator[ModelEvent, None]:
        """The next answer. `MovedOn` between two attempts: what the first one said is void. Raises
        ModelError when nothing is left to try; close it (`aclose`) to give up."""
        round_ = self._pool.round()
        choice = round_.next()
        while choice is not None:
            if choice.pause_s:
                await asyncio.sleep(choice.pause_s)
            index = choice.index
            try:
                async with aclosing(self._attempt(index, system, conversation, tools)) as events:
                    async for event in events:
                        yield event
                round_.answered(index)
                return
            except (ModelError, AttemptFailed, Cooling) as error:
                failure = self._note(round_, index, error)
            choice = round_.next()
            self._log(index, failure, choice)
            if choice is not None:
                yield self._moved_on(index, failure, choice)
        raise round_.exhausted()

    async def _attempt(
        self, index: int, system: str, conversation: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> AsyncGenerator[ModelEvent, None]:
        """One call of one model. The slot is free again before the answer's tools run. Raises Cooling
        or ModelError when there is no lease, AttemptFailed when the model failed."""
        ref, label = self._models.refs[index], self._models.labels[index]
        asked = estimate.request_tokens(system, conversation)
        async with self._leases.take(ref.provider, ref.model, asked) as lease:
            done: MessageDone | None = None
            written = 0
            try:
                opened = self._models.open(index, system, conversation, tools, lease.max_tokens)
                async with aclosing(self._watched(opened, label)) as events:
                    async for said in events:
                        event = well_formed(said)
                        written += estimate.event_size(event)
                        if isinstance(event, MessageDone):
                            done = MessageDone(
                                self._models.priced(index, unique_ids(event.message, conversation))
                            )
                        else:
                            yield event
                if done is None:
                    raise ModelError("bad_response", f"{label}: the answer has no end")
            except ModelError as error:
                cooling_s = await lease.report(estimate.failed(error, asked, written))
                raise AttemptFailed(error, cooling_s > 0) from error
            await lease.report(estimate.answered(done.message, asked))
        yield done

    def _note(self, round_: Round, index: int, error: ModelError | AttemptFailed | Cooling) -> ModelError:
        match error:
            case Cooling():
                label = self._models.labels[index]
                found = ModelError("rate_limited", f"{label}: {error}", retry_after_s=error.left_s)
                round_.cooling(index, found)
                return found
            case AttemptFailed():
                round_.failed(index, error.error, error.cooling)
                return error.error
        round_.failed(index, error, cooling=False)
        return error

    async def _watched(
        self, events: AsyncGenerator[ModelEvent, None], label: str
    ) -> AsyncGenerator[ModelEvent, None]:
        """The same events; ModelError after a silence of `watchdog_s`."""
        async with aclosing(events):
            while True:
                try:
                    async with asyncio.timeout(self._models.watchdog_s):
                        event = await anext(events)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    silence = f"silent for {self._models.watchdog_s:g} s"
                    raise ModelError("timeout", f"{label}: the model was {silence}") from None
                yield event

    def _moved_on(self, index: int, error: ModelError, choice: Choice) -> MovedOn:
        labels, scripted = self._models.labels, self._models.providers[choice.index].scripted
        return MovedOn(labels[index], error.kind, error.message, labels[choice.index], scripted)

    def _log(self, index: int, error: ModelError, choice: Choice | None) -> None:
        attempt = {"model": self._models.labels[index], "kind": error.kind, "status": error.status}
        then = {"next": self._models.labels[choice.index] if choice else ""}
        log.warning("attempt failed: %s", error, extra={**self._told, **attempt, **then})
