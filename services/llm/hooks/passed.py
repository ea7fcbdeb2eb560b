"""Remembers which user messages a client's conversation had checked already. Pure.

A client that keeps its conversation itself (`llm.chat`) sends all of it with each call, as its user wrote it,
not as a hook left it. So every user message must pass, not only the last: one that was refused, or replaced,
would otherwise reach a model with the next call. What has passed is remembered, so that a hook runs once for
each, and a replaced text stays the same text.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

MOST = 20_000
MOST_CHARACTERS = 16 * 1024 * 1024
"""Of the texts that were put in place of others, together."""


class Passed:
    """By agent: no agent's hooks speak for another's. The oldest are forgotten: their hooks run again."""

    def __init__(self, most: int = MOST, most_characters: int = MOST_CHARACTERS) -> None:
        self._most, self._most_characters = most, most_characters
        self._known: OrderedDict[bytes, str | None] = OrderedDict()
        self._characters = 0

    def get(self, agent: str, text: str) -> str | None:
        """As what it passed; None if that isn't known."""
        key = _key(agent, text)
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        known = self._known[key]
        return text if known is None else known

    def keep(self, agent: str, text: str, passed: str) -> None:
        self._drop(_key(agent, text))
        self._known[_key(agent, text)] = None if passed == text else passed
        self._characters += 0 if passed == text else len(passed)
        while len(self._known) > self._most or self._characters > self._most_characters:
            self._drop(next(iter(self._known)))

    def _drop(self, key: bytes) -> None:
        self._characters -= len(self._known.pop(key, None) or "")


def _key(agent: str, text: str) -> bytes:
    return hashlib.sha256(f"{agent}\0{text}".encode()).digest()
