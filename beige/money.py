"""What a model call costs. Pure. Whole nano-dollars everywhere: floats come in from the configuration
and go out to people, nothing is added up in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NANO = 1_000_000_000
"""Nano-dollars of a dollar."""
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
