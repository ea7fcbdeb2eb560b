"""Decides what the models of a configuration cost, and which of them an agent may call."""

from __future__ import annotations

from beige.config.models import AgentConfig, Config, ModelRef, PriceConfig, ProviderConfig
from beige.money import ModelKey, Price

_PICO_PER_TOKEN = 1_000_000
"""A dollar per million tokens is so many pico-dollars per token."""


def price(written: PriceConfig) -> Price:
    """What is not written costs as input does; a cache write a quarter more, as Anthropic asks for."""
    read = written.input if written.cache_read is None else written.cache_read
    write = written.input * 1.25 if written.cache_write is None else written.cache_write
    return Price(*(round(usd * _PICO_PER_TOKEN) for usd in (written.input, written.output, read, write)))


def price_at(provider: ProviderConfig, model: str) -> Price | None:
    """None if the configuration names no price. A script costs nothing."""
    if provider.api == "scripted":
        return Price()
    found = provider.models.get(model)
    return price(found.price) if found is not None and found.price is not None else None


def models_of(agent: AgentConfig) -> dict[ModelKey, ModelRef]:
    """All that an agent may call: its `model` and its `fallbackModels`."""
    return {(ref.provider, ref.model): ref for ref in (*agent.fallback_models, agent.model)}


def prices_of(config: Config) -> dict[ModelKey, Price]:
    """Of every model that an agent may call and that has a price."""
    keys = {key for agent in config.agents.values() for key in models_of(agent)}
    found = {key: price_at(config.llm.providers[key[0]], key[1]) for key in keys}
    return {key: known for key, known in found.items() if known is not None}
