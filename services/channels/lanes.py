"""Decides when a prompt may run: one at a time in a conversation, a few more wait, the rest is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from beige.errors import Overloaded

WAITING = 4
"""Prompts of one conversation that wait for the one that runs."""
HELD = 32
"""Prompts of one channel that run or wait."""
ALL_HELD = 96
"""Those of all channels: three quarters of what one llm process takes, so that operators find room
(`tests/unit/channels/test_channel_rules.py`)."""

Key = tuple[str, str]
"""Agent and conversation."""


@dataclass
class _Lane:
    held: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class Room:
    """What all channels share."""

    held: int = 0


class Lanes:
    """Those of one channel."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._lanes: dict[Key, _Lane] = {}
        self._held = 0

    @contextlib.asynccontextmanager
    async def turn(self, key: Key) -> AsyncIterator[None]:
        """Entered when it is this prompt's turn, in order. Overloaded."""
        if self._held >= HELD:
            raise Overloaded(f"this channel has {HELD} prompts already")
        if self._room.held >= ALL_HELD:
            raise Overloaded(f"all channels together have {ALL_HELD} prompts already")
        lane = self._lanes.setdefault(key, _Lane())
        if lane.held > WAITING:
            raise Overloaded(f"{WAITING} messages of this conversation wait already")
        lane.held += 1
        self._held += 1
        self._room.held += 1
        try:
            async with lane.turn:
                yield
        finally:
            lane.held -= 1
            self._held -= 1
            self._room.held -= 1
            if not lane.held:
                del self._lanes[key]

    def busy(self, key: Key) -> int:
        """How many run or wait."""
        lane = self._lanes.get(key)
        return lane.held if lane else 0
