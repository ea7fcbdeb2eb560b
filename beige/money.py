"""What a model call costs. Pure. Whole nano-dollars everywhere: floats come in from the configuration
and go out to people, nothing is added up in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from beige.config.models import AgentConfig, Config, ModelRef, PriceConfig, ProviderConfig

NANO = 1_000_000_000
"""Nano-dollars of a dollar."""
_PICO_PER_TOKEN = 1_000_000
"""A dollar per million tokens is so many pico-dollars per token."""
COUNTED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
"""The keys of a call's usage that are paid for; they don't overlap (docs/llm.md, "Usage")."""

ModelKey = tuple[str, str]
"""Provider and model, as in the configuration."""


@dataclass(frozen=True, slots=True)
class Price:
    """Pico-dollars per token."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def cost(self, usage: Mapping[str, int]) -> int:
        """Nano-dollars of one call, rounded up. `usage` has the keys of `COUNTED`."""
        pico = (
            usage.get("input_tokens", 0) * self.input
            + usage.get("output_tokens", 0) * self.output
            + usage.get("cache_read_tokens", 0) * self.cache_read
            + usage.get("cache_write_tokens", 0) * self.cache_write
        )
        return -(-pico // 1000)

    @property
    def dearest_input(self) -> int:
        """A price above none that a token of input can have: for a call whose usage is not known yet."""
        return max(self.input, self.cache_read, self.cache_write)


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


def tokens(usage: Mapping[str, int]) -> int:
    """All tokens of a call, cached or not: what a budget counts."""
    return sum(usage.get(name, 0) for name in COUNTED)


def total(sum_nano: int | None, cost_nano: int | None) -> int | None:
    """None once one of the costs is not known."""
    return None if sum_nano is None or cost_nano is None else sum_nano + cost_nano


def nano(usd: float) -> int:
    return round(usd * NANO)


def usd(nano: int | None) -> float | None:
    """For people and JSON; None stays None."""
    return None if nano is None else nano / NANO


def shown(nano: int) -> str:
    """`$1.25`, `$0.0042`: with four decimals below a dollar, and never "nothing" for something."""
    if not nano:
        return "$0"
    if nano >= NANO:
        return f"${nano / NANO:,.2f}"
    return f"${nano / NANO:.4f}" if nano >= NANO // 10_000 else "<$0.0001"
