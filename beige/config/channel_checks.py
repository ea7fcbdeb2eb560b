"""Decides whether the channels of a configuration exist and name agents there are. Works on plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from beige.config.problems import Problem, suggest
from beige.plugins import Provides

RESERVED = ("cli", "http")
"""Names of the built-in ways to an agent: what the audit log says must not be ambiguous."""


def check(raw: Mapping[str, Any], provided: Mapping[str, Provides]) -> Iterator[Problem]:
    agents, plugins = _object(raw.get("agents")), _object(raw.get("plugins"))
    known = {channel for provides in provided.values() for channel in provides.channels}
    for name, channel in _object(raw.get("channels")).items():
        at, channel = ("channels", name), _object(channel)
        if name in RESERVED:
            yield Problem(at, f"{name!r} is the name of a way that is built in", "choose another name")
        adapter = channel.get("adapter", name)
        if isinstance(adapter, str) and adapter not in known and set(provided) == set(plugins):
            place = (*at, "adapter") if "adapter" in channel else at
            text = f"no plugin provides the channel {adapter!r}"
            yield Problem(place, text, suggest(adapter, known, kind="channel"))
        named = channel.get("agents")
        for index, agent in enumerate(named if isinstance(named, list) else ()):
            if isinstance(agent, str) and agent not in agents:
                choices = suggest(agent, agents, kind="agent")
                yield Problem((*at, "agents", index), f"no such agent: {agent!r}", choices)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
