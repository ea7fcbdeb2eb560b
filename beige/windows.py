"""Decides how long a conversation with a model may get: its context window, and when to summarise. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from beige.config import ModelRef

RESERVE = 16_384
"""Tokens left for the answer below the window (the seed's default)."""
UNKNOWN_WINDOW = 128_000
WINDOWS = (
    (r"claude-", 200_000),
    (r"gpt-5", 272_000),
    (r"gpt-4\.1", 1_047_576),
    (r"gpt-4o|gpt-4-turbo|gpt-4-1106|gpt-4-0125|chatgpt-4o", 128_000),
    (r"gpt-4-32k", 32_768),
    (r"gpt-4", 8_192),
    (r"gpt-3\.5", 16_385),
    (r"o[134](?:-|$)", 200_000),
)
"""Beginnings of the vendors' names, most telling first; tokens of input. Source: their model pages. A
vendor's larger window that must be asked for (a beta header) is `contextWindow` in the configuration."""


@dataclass(frozen=True)
class Limits:
    window: int
    threshold: int
    """Above so many tokens older turns are summarised."""

    @property
    def keep(self) -> int:
        """Tokens of the latest messages that stay as they are."""
        return min(self.threshold // 5, 20_000)


def limits(ref: ModelRef) -> Limits:
    window = ref.context_window or known_window(ref.model)
    return Limits(window, ref.compaction_threshold or default_threshold(window))


def default_threshold(window: int) -> int:
    """Half of a window that is too small for the reserve."""
    return window - RESERVE if window >= 2 * RESERVE else window // 2


def known_window(model: str) -> int:
    """By the model's name, without a gateway's prefix (`anthropic/claude-...`)."""
    name = model.rpartition("/")[2]
    return next((tokens for begin, tokens in WINDOWS if re.match(begin, name)), UNKNOWN_WINDOW)
