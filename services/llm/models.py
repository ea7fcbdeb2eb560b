"""Decides which model is asked for an answer. Today: the agent's first, once.

The place for what comes later: fallback over `fallbackModels` with cooldowns, a lease from policy
around each attempt (concurrency, budget), the report of each attempt to audit. A turn knows nothing
of attempts; it asks here, and gets one stream of events or one `ModelError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from beige.config import AgentConfig
from services.llm.conversation import Message
from services.llm.events import ModelEvent
from services.llm.providers.base import ModelRequest, Provider
from services.llm.tools import SPECS


class Models:
    """The models of one agent."""

    def __init__(self, agent: AgentConfig, providers: Mapping[str, Provider]) -> None:
        self._ref = agent.model
        self._provider = providers[agent.model.provider]

    @property
    def label(self) -> str:
        """The name of the model a turn begins with."""
        return self._provider.label(self._ref.model)

    @property
    def scripted(self) -> bool:
        return self._provider.scripted

    def stream(self, system: str, conversation: Sequence[Message]) -> AsyncGenerator[ModelEvent, None]:
        """The next answer. Raises ModelError; close it (`aclose`) to give up."""
        return self._provider.stream(
            ModelRequest(
                model=self._ref.model,
                system=system,
                messages=conversation,
                tools=SPECS,
                thinking_level=self._ref.thinking_level,
                max_tokens=self._ref.max_tokens,
            )
        )
