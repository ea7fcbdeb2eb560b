"""Bodies of `policy.*`: leases for model calls. Only for an llm worker, for the agent it serves."""

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


METHODS = {
    "policy.lease": Method(LeaseRequest, LeaseResult, LeaseItem),
}
