"""Bodies of `channels.*`."""

from __future__ import annotations

from typing import Literal

from beige.messages.base import Body, Empty, Method


class ChannelInfo(Body, omit_defaults=False):
    name: str
    adapter: str
    agents: list[str]
    state: Literal["up", "starting", "failed"]
    """`failed`: its plugin could not be loaded, and is not tried again before the next start."""
    problem: str = ""
    """Why it is not up, or why its process ended last."""
    prompts: int = 0
    """That run or wait."""


class ChannelList(Body, omit_defaults=False):
    channels: list[ChannelInfo]


METHODS = {"channels.list": Method(Empty, ChannelList)}
