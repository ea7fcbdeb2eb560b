"""What all connections of one agent share: its name, its slots, its budgets of memory.

One desk per agent, so that an agent that floods its socket waits for itself alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from beige.errors import BeigeError, Failed, Overloaded, TooLarge
from beige.messages.tools import ToolResult
from socket_bridge import protocol
from socket_bridge.protocol import Line, ToolRequest

MAX_CONNECTIONS = 64
IN_FLIGHT = 16
MAX_UNPARSED = 16 * 1024 * 1024
"""Bytes of half-sent requests, over all connections of the agent."""
MAX_UNREAD = 16 * 1024 * 1024
"""Bytes of answers the agent has not read, over all its connections."""

Relay = Callable[[str, ToolRequest], Awaitable[ToolResult]]
"""Agent and request to result; raises BeigeError."""
log = logging.getLogger("bridge")


class Caller(Protocol):
    """A connection, as far as the desk is concerned."""

    @property
    def unparsed(self) -> int: ...
    @property
    def unread(self) -> int: ...


class Desk:
    """Admits connections, answers lines. `agent` is the listener's: no request can change it."""

    def __init__(self, agent: str, relay: Relay) -> None:
        self.agent = agent
        self._relay = relay
        self._callers: set[Caller] = set()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self.refused = 0

    def admit(self, caller: Caller) -> BeigeError | None:
        """None, or why the connection is refused."""
        if len(self._callers) >= MAX_CONNECTIONS:
            self.refused += 1
            return Overloaded(f"agent '{self.agent}' has {MAX_CONNECTIONS} connections already")
        self._callers.add(caller)
        return None

    def leave(self, caller: Caller) -> None:
        self._callers.discard(caller)

    def __len__(self) -> int:
        """Connections admitted."""
        return len(self._callers)

    @property
    def unparsed(self) -> int:
        return sum(caller.unparsed for caller in self._callers)

    @property
    def unread(self) -> int:
        return sum(caller.unread for caller in self._callers)

    def over_budget(self) -> BeigeError | None:
        """Why this agent must give up a connection that holds much memory, if it must."""
        if self.unparsed > MAX_UNPARSED:
            return TooLarge(f"more than {MAX_UNPARSED} bytes of unfinished requests")
        if self.unread > MAX_UNREAD:
            return TooLarge(f"more than {MAX_UNREAD} bytes of answers were not read")
        return None

    async def answer(self, line: Line) -> bytes:
        """The response line for one request line. Waits for one of the agent's slots; connections
        take turns, because each has one request here at a time."""
        async with self._slots:
            if isinstance(line, TooLarge):
                return protocol.error_line(line)
            try:
                request = protocol.parse(line)
            except BeigeError as error:
                return protocol.error_line(error)
            try:
                return protocol.result_line(await self._relay(self.agent, request), request.id)
            except BeigeError as error:
                return protocol.error_line(error, request.id)
            except Exception:
                log.exception("relaying failed", extra={"agent": self.agent})
                return protocol.error_line(Failed("internal error in the gateway"), request.id)
