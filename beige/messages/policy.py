"""Bodies of `policy.*`: leases for model calls (only for an llm worker, for the agent it serves), budgets,
and learning what an agent connects to."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from beige.messages.base import AgentRef, Body, Method

Tokens = Annotated[int, Meta(ge=0, le=10_000_000)]
"""More than any model takes or gives in one call: what says more is broken, or lies."""


class LeaseRequest(Body):
    """May one call be made to this model? A slot of its provider, and a part of the budget, is held until
    a `LeaseReport` is streamed up, or the call is cancelled."""

    provider: Annotated[str, Meta(min_length=1, max_length=256)]
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input_tokens: Tokens = 0
    """What the request is thought to hold."""
    holding: Annotated[str, Meta(max_length=64)] = ""
    """The call is under way: its lease, `LeaseItem.lease`, was lost with a policy process."""


class LeaseItem(Body):
    state: Literal["waiting", "granted"]
    ahead: int = 0
    """Waiting: calls that come before this one."""
    waiting_for: Literal["slot", "budget"] = "slot"
    """Budget: what other calls under way have reserved may still become free."""
    lease: str = ""
    """Granted: the lease's name."""
    max_tokens: int | None = None
    """Granted: the budget has room for no longer answer. None: as the model's settings say."""
    warning: str = ""
    """Granted: a soft limit is reached; in words, for the caller."""


class Usage(Body):
    """Tokens of one model call; the four don't overlap (docs/llm.md, "Usage")."""

    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cache_read_tokens: Tokens = 0
    cache_write_tokens: Tokens = 0


class LeaseReport(Body):
    """The one item up: how the model call went."""

    outcome: Literal["answered", "failed"]
    kind: Annotated[str, Meta(max_length=64)] = ""
    """Failed: what went wrong (`services.llm.providers.failures.Kind`)."""
    status: Annotated[int, Meta(ge=0, le=999)] | None = None
    """Failed: the HTTP status, if the provider answered with one."""
    retry_after_s: Annotated[float, Meta(ge=0)] | None = None
    """Failed: the provider's own word."""
    usage: Usage | None = None
    """As the provider counted, else estimated. None: nothing was used (or nobody knows: policy decides)."""


class LeaseResult(Body):
    granted: bool
    cooling_s: float = 0.0
    """The model must not be called for so many seconds: why it was not granted, or what came of
    the report."""
    over_budget: bool = False
    """Why it was not granted."""
    reason: str = ""


# --- egress -----------------------------------------------------------------------------------------


class LearnRequest(Body):
    """For `duration_s`, or until END is streamed up, the header's agent may connect to whatever the
    guards of egress permit, and each destination is told. The agent must have `sandbox.egress`."""

    duration_s: Annotated[float, Meta(gt=0, le=86400)] = 600.0


class LearnItem(Body):
    """A destination that was asked for the first time since learning began."""

    destination: str
    """`host:port`"""
    listed: bool
    """The agent's own rules cover it; false: only learning let it through."""


class LearnResult(Body):
    allow: list[str]
    """The allowlist that would have sufficed, sorted."""
    connections: int


# --- budgets ----------------------------------------------------------------------------------------


class BudgetLine(Body):
    """One account: what was used of it, and its limits if it has any. Money in nano-dollars."""

    scope: Literal["session", "day", "total", "house"]
    """`house`: the day of all agents together."""
    agent: str
    session: str
    used_tokens: int
    used_nano: int
    reserved_tokens: int
    """By calls under way."""
    reserved_nano: int
    limit_tokens: int | None = None
    limit_nano: int | None = None
    soft: float = 1.0
    """The part of the limit at which the caller is warned."""
    resets: str = ""
    """ISO 8601, UTC; "": never."""


class BudgetReport(Body):
    """The accounts of the header's agent, or of all agents; those of sessions only if they are limited,
    or if the header names one."""

    lines: list[BudgetLine]
    unpriced: list[str] = []
    """`provider/model` of what these agents may call and that counts tokens, but no money."""


METHODS = {
    "policy.lease": Method(LeaseRequest, LeaseResult, LeaseItem),
    "policy.learn": Method(LearnRequest, LearnResult, LearnItem),
    "policy.budget": Method(AgentRef, BudgetReport),
}
