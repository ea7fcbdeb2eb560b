"""Decides which agents may be spoken to through a channel, whatever the channels process asks for. Pure.

The broker vouches for who calls and for the channel's own sessions; the agents are the configuration's word.
Stops a channels process in hostile hands (`tests/attacks/test_channels.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from beige.bus import Request
from beige.bus.serving import Handler
from beige.errors import Denied

ROLE = "channels"


class Listed(Protocol):
    """`beige.config.ChannelConfig`, as far as it matters here."""

    @property
    def agents(self) -> tuple[str, ...]: ...


def refusal(src: str, channel: str, agent: str, channels: Mapping[str, Listed]) -> str:
    """Why the bus user `src` may not speak to `agent` through `channel`; empty if it may."""
    if src.partition("/")[0] != ROLE:
        return ""
    if channel not in channels:
        return f"there is no channel '{channel}'"
    if agent not in channels[channel].agents:
        return f"channel '{channel}' may not speak to agent '{agent}'"
    return ""


def guarded(handlers: Mapping[str, Handler], channels: Mapping[str, Listed]) -> dict[str, Handler]:
    """`handlers`, each behind this door."""
    return {method: _guarded(handler, channels) for method, handler in handlers.items()}


def _guarded(handler: Handler, channels: Mapping[str, Listed]) -> Handler:
    async def checked(request: Request, body: Any) -> Any:
        if reason := refusal(request.src, request.channel, request.agent, channels):
            raise Denied(reason)
        return await handler(request, body)

    return checked
