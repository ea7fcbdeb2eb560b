"""Decides what a proxy request asks for: its head in, a destination or a refusal out. Pure.

Every byte is the agent's. h11 has read the head; what is sent on is built anew from what it understood, so
that nothing reaches the other side that was not looked at here (no smuggling by odd whitespace, bare line
feeds or two lengths; `tests/attacks/test_egress.py`).
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Literal

import h11

from beige.destinations import Destination, parse_authority
from beige.errors import Malformed
from beige.messages.egress import TOKEN_USER

MAX_HEAD = 16 * 1024
HTTP_PORT = 80

_ABSOLUTE = re.compile(
    r"http://(?P<authority>[^/?#@\\]+)(?P<path>/[^#]*)?(?P<query>\?[^#]*)?\Z", re.IGNORECASE
)
_HOP_BY_HOP = frozenset({
    *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"),
    *(b"te", b"trailer", b"upgrade"),
})  # fmt: skip
"""Transfer-Encoding is h11's to write."""


class Refused(Exception):
    """The answer to a request that is not made. `rule`: what an operator would add to allow it."""

    def __init__(self, status: int, reason: str, rule: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.rule = status, reason, rule


@dataclass(frozen=True)
class Asked:
    destination: Destination
    scheme: Literal["connect", "http"]
    method: str
    token: str
    """The call token, if one was presented; the broker judges it."""
    onward: h11.Request | None
    """Scheme http: the request as it goes out."""


def asked(request: h11.Request) -> Asked:
    """Refused (400) if it is no proxy request, or says two things at once."""
    method = request.method.decode("ascii")
    token = _token(request)
    try:
        if method == "CONNECT":
            return Asked(parse_authority(request.target.decode("ascii")), "connect", method, token, None)
        return _plain(request, method, token)
    except Malformed as error:
        raise Refused(400, str(error)) from None


def _plain(request: h11.Request, method: str, token: str) -> Asked:
    found = _ABSOLUTE.match(request.target.decode("ascii"))
    if not found:
        raise Refused(400, "this is a proxy: the request line needs http://host/path, or CONNECT host:port")
    wanted = parse_authority(found["authority"], HTTP_PORT)
    hosts = [value.decode("latin-1") for name, value in request.headers if name == b"host"]
    # A server with several sites chooses by Host: policy must have decided about the same name.
    if any(parse_authority(host, HTTP_PORT) != wanted for host in hosts):
        raise Refused(400, "the Host header names another host than the request line")
    names = [name for name, _ in request.headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        raise Refused(400, "the request has two lengths, Content-Length and Transfer-Encoding")
    target = (found["path"] or "/") + (found["query"] or "")
    host = (b"host", found["authority"].encode("ascii"))
    headers = [host, *_kept(request), (b"connection", b"close")]
    return Asked(wanted, "http", method, token, h11.Request(method=method, target=target, headers=headers))


def _kept(request: h11.Request) -> list[tuple[bytes, bytes]]:
    named = {
        option.strip().lower()
        for name, value in request.headers
        if name == b"connection"
        for option in value.split(b",")
    } - {b"content-length", b"transfer-encoding"}  # or the body's length could be taken away
    dropped = _HOP_BY_HOP | named | {b"host"}
    return [(name, value) for name, value in request.headers if name not in dropped]


def answer_headers(response: h11.Response | h11.InformationalResponse) -> list[tuple[bytes, bytes]]:
    """The headers of an answer as the agent gets them: it ends the connection, whatever the server says."""
    return [(name, value) for name, value in response.headers if name not in _HOP_BY_HOP]


def _token(request: h11.Request) -> str:
    """The password of Proxy-Authorization, if it is a call token; anything else means no token."""
    for name, value in request.headers:
        kind, _, encoded = value.partition(b" ")
        if name == b"proxy-authorization" and kind.lower() == b"basic":
            try:
                user, _, token = base64.b64decode(encoded, validate=True).decode("ascii").partition(":")
            except (binascii.Error, UnicodeDecodeError):
                return ""
            return token if user == TOKEN_USER and len(token) <= 256 else ""
    return ""


def refusal(refused: Refused, *, body: bool = True) -> bytes:
    """The bytes of the answer. The reason is also in the status line: of a refused CONNECT most programs
    show nothing else."""
    reason = "".join(c if c.isprintable() and c.isascii() else "?" for c in refused.reason)[:400]
    text = f"{reason}\n".encode() if body else b""
    lines = [
        f"HTTP/1.1 {refused.status} {reason}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(text)}",
        "Connection: close",
    ]
    if refused.rule:
        lines.append(f"X-Beige-Egress-Rule: {refused.rule}")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + text
