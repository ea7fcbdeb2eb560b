"""Decides who may call what, and which stations a call visits. Deny by default.

A role comes from the user the peer authenticated as (`role/instance`), never from a message.
`tests/unit/broker/test_access.py` tries every role against every method.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from beige import wire

Station = tuple[int, str]
"""(hop, service) of one stop on a call's way."""

CORE_TOOLS = frozenset({"sandbox.exec", "sandbox.read", "sandbox.write", "sandbox.patch"})
EGRESS = frozenset({"egress.connect"})
"""Only the bridge's, which knows whose socket a connection came from: nobody else, not even an operator,
has a way to the internet in an agent's name (`tests/attacks/test_egress_callers.py`)."""
LEASES = frozenset({"policy.lease"})
"""Model calls. Only an llm worker's, for the agent of a prompt it is serving: one in hostile hands gets no
lease for another agent's models (`tests/attacks/test_budgets.py`)."""
HOOKS = frozenset({"tools.hook"})
"""Hooks of plugins. Only an llm worker's, for a prompt it is serving: no agent can have one run, and a worker
in hostile hands can show a plugin no other agent's prompts (`tests/attacks/test_hooks.py`)."""
WORK = CORE_TOOLS | {"tools.call"}
GOVERNED = WORK | EGRESS | LEASES | HOOKS
OPERATED = frozenset({
    *("llm.prompt", "llm.compact", "llm.sessions", "llm.session", "llm.history", "llm.fork", "llm.remove"),
    *("llm.settings", "llm.chat", "policy.budget", "audit.query"),
    *("sandbox.ensure", "sandbox.list", "sandbox.remove", "sandbox.show", "sandbox.verify"),
    "policy.learn",
    "channels.list",
    *("sandbox.stop", "sandbox.logs"),
})  # fmt: skip
CHANNELS = frozenset({"llm.prompt", "llm.settings", "llm.session"})
"""What people in a chat can cause: no executor, no other session's history, nothing of the house itself
(`tests/attacks/test_channels.py`)."""
BUS = frozenset({"bus.stats", "bus.cancel"})


@dataclass(frozen=True)
class Role:
    """What one kind of process may do on the bus."""

    serves: str = ""
    """The one service it may announce."""
    calls: frozenset[str] = field(default_factory=frozenset)
    names_agents: bool = False
    """An operator: may name agent, session and channel freely."""
    own_sessions: bool = False
    """The channels: may name any agent, but only with a channel and a session that is that channel's by its
    name. Which agents a channel may speak to is in the configuration: the llm service decides it."""
    stamps_agents: bool = False
    """The bridge: may name the agent, because its sockets tell it, and present a call token."""
    connections: int = 4
    """Open at once per user: a process holds one; a second may overlap while it reconnects."""


ROLES: dict[str, Role] = {
    "policy": Role(serves="policy"),
    "audit": Role(serves="audit"),
    "sandbox": Role(serves="sandbox"),
    "tools": Role(serves="tools"),
    "egress": Role(serves="egress"),
    "llm": Role(serves="llm", calls=CORE_TOOLS | LEASES | HOOKS),
    "bridge": Role(calls=frozenset({"tools.call"}) | EGRESS, stamps_agents=True),
    "tap": Role(calls=frozenset({"bus.tap"})),
    "gateway": Role(calls=WORK | OPERATED | BUS, names_agents=True),
    "channels": Role(serves="channels", calls=CHANNELS, own_sessions=True),
    "cli": Role(calls=WORK | OPERATED | BUS, names_agents=True, connections=64),
}

VERDICT_ROLE, RECEIPT_ROLE = "policy", "audit"


def role_name(user: str) -> str:
    return user.split("/", 1)[0]


def stations(service: str, method: str) -> tuple[Station, ...]:
    """The way of a call: the corridor for governed methods, else straight to the service."""
    if f"{service}.{method}" in GOVERNED:
        return (
            (wire.AUTHORIZE, "policy"),
            (wire.STARTED, "audit"),
            (wire.EXECUTE, service),
            (wire.FINISHED, "audit"),
        )
    return ((wire.DIRECT, service),)


ISSUES_TOKENS = frozenset({"sandbox.exec"})
"""Methods whose executor gets a call token to hand to the commands it starts."""
