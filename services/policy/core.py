"""Decides whether an agent may make a call: deny by default. Pure. When a model may be called: `leases`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from beige.errors import Malformed
from beige.messages import METHODS
from beige.messages.policy import LeaseRequest
from beige.messages.tools import HookCall, ToolCall
from beige.money import ModelKey
from beige.wire import DECODE_ERRORS

CORE_METHODS = frozenset({"sandbox.exec", "sandbox.read", "sandbox.write", "sandbox.patch"})
TOOL_METHOD = "tools.call"
LEASE_METHOD = "policy.lease"
HOOK_METHOD = "tools.hook"

_DECODERS = {
    name: msgspec.msgpack.Decoder(METHODS[name].request)
    for name in (*CORE_METHODS, TOOL_METHOD, LEASE_METHOD, HOOK_METHOD)
}

Rules = Mapping[str, frozenset[str]]
"""Configured agent → the plugin tools it may call."""


Models = Mapping[str, Collection[ModelKey]]
"""Configured agent → the models it may call: its `model` and `fallbackModels`, and no other."""

Hook = tuple[str, str]
"""Plugin and hook."""
Hooks = Mapping[str, Collection[Hook]]
"""Configured agent → who may be shown its prompts and answers, and nobody else."""

Channels = Mapping[str, Collection[str]]
"""Configured channel → the agents that may be spoken to through it."""


@dataclass(frozen=True)
class Grants:
    """What the configuration grants each agent."""

    tools: Rules = field(default_factory=dict)
    models: Models = field(default_factory=dict)
    hooks: Hooks = field(default_factory=dict)
    channels: Channels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    reason: str = ""
    """Shown to the agent and written to the audit log. Allowed: empty, or (egress) the rule that did it."""


ALLOWED = Decision(True)


def decide(rules: Rules, agent: str, method: str, tool: str = "") -> Decision:
    """May `agent` call `method` (`service.method`; with `tool`, for a plugin's)? The broker vouches for
    `agent`; `tool` is the agent's own word. The wording is the seed's (security model)."""
    tools = rules.get(agent)
    name = tool if method == TOOL_METHOD else method.rpartition(".")[2]
    if tools is None:
        return Decision(False, f"Permission denied: agent '{agent}' is not configured")
    if method in CORE_METHODS or (method == TOOL_METHOD and tool in tools):
        return ALLOWED
    return Decision(False, f"Permission denied: tool '{name}' not allowed for agent '{agent}'")


def decide_channel(channels: Channels, channel: str, agent: str) -> Decision:
    """May `agent` act for somebody who came through `channel`, whatever llm took in? The broker vouches for
    both; the terminal and HTTP are no channels of the configuration (`tests/attacks/test_channels.py`)."""
    if channel not in channels or agent in channels[channel]:
        return ALLOWED
    return Decision(False, f"Permission denied: channel '{channel}' may not speak to agent '{agent}'")


def decide_model(models: Models, agent: str, model: ModelKey) -> Decision:
    """May `agent` call `model`, whatever an llm worker asks for (`tests/attacks/test_budgets.py`)?"""
    if model in models.get(agent, ()):
        return ALLOWED
    name = "/".join(model)
    return Decision(False, f"Permission denied: model '{name}' not allowed for agent '{agent}'")


def decide_hook(hooks: Hooks, agent: str, hook: Hook) -> Decision:
    """May this hook be run for `agent`, whatever an llm worker asks for (`tests/attacks/test_hooks.py`)?"""
    if hook in hooks.get(agent, ()):
        return ALLOWED
    plugin, name = hook
    return Decision(
        False, f"Permission denied: plugin '{plugin}' may not listen to {name} of agent '{agent}'"
    )


def tool_named(method: str, body: bytes) -> str:
    """The plugin tool a request names, "" for other methods. Malformed if the body is not the method's:
    what can't be read can't be decided."""
    request = _decoded(method, body)
    return request.tool if isinstance(request, ToolCall) else ""


def model_named(method: str, body: bytes) -> ModelKey | None:
    """The model a lease is asked for, None for other methods. Malformed as for `tool_named`."""
    request = _decoded(method, body) if method == LEASE_METHOD else None
    return (request.provider, request.model) if isinstance(request, LeaseRequest) else None


def hook_named(method: str, body: bytes) -> Hook | None:
    """The hook that is to be run, None for other methods. Malformed as for `tool_named`."""
    request = _decoded(method, body) if method == HOOK_METHOD else None
    return (request.plugin, request.hook) if isinstance(request, HookCall) else None


def _decoded(method: str, body: bytes) -> object:
    decoder = _DECODERS.get(method)
    if decoder is None:
        return None
    try:
        return decoder.decode(body)
    except DECODE_ERRORS as error:
        raise Malformed(f"{method}: {error}") from None
