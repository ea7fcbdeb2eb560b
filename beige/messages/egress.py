"""Bodies of `egress.*`: one connection of an agent to the internet."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from beige.messages.base import Body, Method

RELAY_PORT = 3128
"""Where `/beige/relay` listens in the container, on loopback."""
TOKEN_USER = "call"  # noqa: S105
"""The user name under which a command presents its call token, as the proxy's password."""


class ConnectRequest(Body):
    """Connect to a host and carry bytes both ways: items up go out, items down came in. The first item
    down is empty and says that the connection stands; END up is passed on as the end of what is sent."""

    host: Annotated[str, Meta(min_length=1, max_length=255)]
    """In the form of `beige.destinations`; another one is Malformed."""
    port: Annotated[int, Meta(ge=1, le=65535)]
    scheme: Literal["connect", "http"] = "connect"
    """`connect`: a tunnel, whose TLS must name `host`. `http`: one plain request."""
    method: Annotated[str, Meta(min_length=1, max_length=32)] = "CONNECT"
    """Of the agent's request; for the record only."""


class ConnectResult(Body):
    sent_bytes: int = 0
    received_bytes: int = 0


METHODS = {
    "egress.connect": Method(ConnectRequest, ConnectResult, bytes),
}
