"""Decides who may come in: the head's size, Host, Origin, token, scope and agent. Pure.

Everything here is a stranger's word until the token is known. Each refusal has its line in
`tests/attacks/test_http_api_access.py`.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from beige.config import GatewayConfig
from beige.tokens import Scope, Token, digest_of
from services.gateway.errors import HttpError, forbidden, unauthorized

Headers = Sequence[tuple[bytes, bytes]]
MAX_HEADERS, MAX_HEAD_BYTES, MAX_TARGET_BYTES = 64, 16 * 1024, 4096
VERSIONS = ("1.0", "1.1")
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?\Z")
_ONCE = (b"host", b"authorization", b"origin", b"content-length", b"content-type", b"transfer-encoding")
CLOSE = {"connection": "close"}


@dataclass(frozen=True)
class Door:
    """By which names the API may be addressed, and by pages of which origins."""

    hosts: frozenset[str]
    origins: frozenset[str]
    any_address: bool
    """Any IP address is good as a Host: it listens at all of this machine's."""


def door(config: GatewayConfig) -> Door:
    names = {name.lower().strip("[]") for name in (config.host, *config.allowed_hosts)}
    everywhere = config.host in ("0.0.0.0", "::")
    return Door(LOCAL | names, frozenset(origin.lower() for origin in config.cors), everywhere)


def check_head(headers: Headers, target: bytes, version: str = "1.1") -> None:
    """Bounds what a request's head may cost, and refuses two ways to say where it ends: stops a
    request smuggled past a proxy in front (`test_two_framings_of_one_body_are_refused`)."""
    size = sum(len(name) + len(value) for name, value in headers)
    if len(headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
        limits = f"{MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes"
        raise HttpError(431, "too_large", f"the request's head is over its limit: {limits}", CLOSE)
    if len(target) > MAX_TARGET_BYTES:
        raise HttpError(414, "too_large", f"the URL is longer than {MAX_TARGET_BYTES} bytes", CLOSE)
    if version not in VERSIONS:
        raise HttpError(400, "malformed", "only HTTP/1.1 and 1.0 are spoken here", CLOSE)
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise HttpError(400, "malformed", f"the header {name.decode()} is given twice", CLOSE)
    if b"content-length" in names and b"transfer-encoding" in names:
        raise HttpError(400, "malformed", "content-length and transfer-encoding exclude each other", CLOSE)


def check_host(at: Door, headers: Headers) -> None:
    """Stops DNS rebinding: a web page whose name is pointed at this machine comes with its own name
    as Host (`test_a_wrong_host_is_refused`)."""
    match = _HOST.match(header(headers, b"host").lower())
    name = (match[1] or match[2]) if match else ""
    if name not in at.hosts and not (at.any_address and _is_address(name)):
        raise HttpError(
            421, "denied", "this API does not answer to the name in Host: set gateway.allowedHosts"
        )


def allowed_origin(at: Door, headers: Headers) -> str:
    """The request's Origin if it is one whose pages may use the API; else empty."""
    origin = header(headers, b"origin")
    return origin if origin.lower() in at.origins else ""


def check_origin(at: Door, headers: Headers) -> None:
    """Stops pages of other web sites, token or not (`test_a_foreign_origin_is_refused`). Only browsers
    send an Origin, and they always do when it matters."""
    if header(headers, b"origin"):
        if not allowed_origin(at, headers):
            raise forbidden("pages of this origin may not use the API: set gateway.cors")
    elif header(headers, b"sec-fetch-site") in ("cross-site", "same-site"):
        raise forbidden("other web sites may not use the API")


def find_token(tokens: Iterable[Token], headers: Headers, now: datetime) -> Token:
    """The token that is presented. Every digest is compared, each in constant time: neither how many
    there are nor which one is near can be measured."""
    scheme, _, secret = header(headers, b"authorization").partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise unauthorized("a token is needed: Authorization: Bearer ...")
    digest, found = digest_of(secret.strip()), None
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    if found is None or found.expired(now):
        raise unauthorized("the token is wrong, revoked or expired")
    return found


def check_scope(token: Token, scopes: Sequence[Scope], agent: str = "") -> None:
    """`scopes`: one of them is needed; none: any token is good enough. The agent first: whether there
    is one of that name is not for everybody."""
    if agent and not token.reaches(agent):
        raise forbidden(f"the token {token.name!r} is not for this agent")
    if scopes and not set(scopes) & set(token.scopes):
        raise forbidden(f"the token {token.name!r} has not the scope {' or '.join(scopes)}")


def header(headers: Headers, name: bytes) -> str:
    return next((value for key, value in headers if key == name), b"").decode("latin-1")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
