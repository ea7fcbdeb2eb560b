"""Decides what the configuration means for policy: who may call what, and within which limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from beige import money
from beige.config import Config, LimitConfig
from beige.destinations import Rule, parse_rule
from beige.money import ModelKey
from services.policy.budget import Limit, Scope
from services.policy.core import Hook, Rules

ANSWER_TOKENS = 16_384
"""Reserved for the answer of a model without `maxTokens`; as much again if it may think."""


def rules_of(config: Config) -> Rules:
    return {name: frozenset(agent.tools) for name, agent in config.agents.items()}


def hooks_of(config: Config) -> dict[str, frozenset[Hook]]:
    return {
        name: frozenset((entry.plugin, hook) for entry in agent.hooks for hook in entry.on)
        for name, agent in config.agents.items()
    }


def channels_of(config: Config) -> dict[str, tuple[str, ...]]:
    return {name: channel.agents for name, channel in config.channels.items()}


def answers_of(config: Config) -> dict[str, dict[ModelKey, int]]:
    """What each agent may call, its `model` and `fallbackModels` and nothing else, and the longest answer
    that is reserved for: policy's own word, so that a worker in hostile hands can't reserve less."""
    found: dict[str, dict[ModelKey, int]] = {}
    for name, agent in config.agents.items():
        longest = found[name] = {}
        for ref in (agent.model, *agent.fallback_models):
            thinks = 1 if ref.thinking_level == "off" else 2
            tokens = ref.max_tokens or ANSWER_TOKENS * thinks
            model = (ref.provider, ref.model)
            longest[model] = max(tokens, longest.get(model, 0))
    return found


def doors_of(config: Config) -> dict[str, tuple[Rule, ...]]:
    """The allowlist of each agent that has egress."""
    return {
        name: tuple(parse_rule(text) for text in agent.sandbox.egress.allow)
        for name, agent in config.agents.items()
        if agent.sandbox.egress is not None
    }


def slots_of(config: Config) -> dict[str, int]:
    return {name: provider.concurrency for name, provider in config.llm.providers.items()}


def budgets_of(config: Config) -> dict[str, dict[Scope, Limit]]:
    limits: dict[str, dict[Scope, Limit]] = {"": _limits({"house": config.budget.day})}
    for name, agent in config.agents.items():
        budget = agent.budget
        limits[name] = _limits({"session": budget.session, "day": budget.day, "total": budget.total})
    return limits


def _limits(written: Mapping[Scope, LimitConfig | None]) -> dict[Scope, Limit]:
    return {
        scope: Limit(limit.tokens, None if limit.usd is None else money.nano(limit.usd), limit.soft)
        for scope, limit in written.items()
        if limit is not None
    }
