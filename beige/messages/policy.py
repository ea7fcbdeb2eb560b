"""Bodies of `policy.*`: leases for model calls (only for an llm worker, for the agent it serves), and
learning what an agent connects to."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from beige.messages.base import Body, Method


class LeaseRequest(Body):
    """May one call be made to this model? A slot of its provider is held until a `LeaseReport` is
    streamed up, or the call is cancelled."""

    provider: Annotated[str, Meta(min_length=1, max_length=256)]
    model: Annotated[str, Meta(min_length=1, max_length=256)]


class LeaseItem(Body):
    state: Literal["waiting", "granted"]
    ahead: int = 0
    """Waiting: calls that come before this one."""


class LeaseReport(Body):
    """The one item up: how the model call went."""

    outcome: Literal["answered", "failed"]
    kind: Annotated[str, Meta(max_length=64)] = ""
    """Failed: what went wrong (`services.llm.providers.failures.Kind`)."""
    status: int | None = None
    """Failed: the HTTP status, if the provider answered with one."""
    retry_after_s: Annotated[float, Meta(ge=0)] | None = None
    """Failed: the provider's own word."""


class LeaseResult(Body):
    granted: bool
    cooling_s: float = 0.0
    """The model must not be called for so many seconds: why it was not granted, or what came of
    the report."""
    reason: str = ""


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


METHODS = {
    "policy.lease": Method(LeaseRequest, LeaseResult, LeaseItem),
    "policy.learn": Method(LearnRequest, LearnResult, LearnItem),
}
