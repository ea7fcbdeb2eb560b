"""The way out through a proxy of the operator's, for machines that have no other.

The proxy resolves the names: where they lead can't be checked here, only what they look like. docs/egress.md
says what that costs. Plain requests go through a tunnel too, so the proxy must allow CONNECT to their port.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import h11

from beige.destinations import Destination, bracketed, is_address, parse_authority
from beige.errors import ConfigError, Failed, Malformed
from services.egress.addresses import why_refused
from services.egress.dialer import Link, Refusal, connect

ANSWER_S = 20.0
MAX_HEAD = 16 * 1024
WHERE = "egress.upstreamProxy"
ENVIRONMENT = "environment"
_FORM = 'allowed: "http://[user:password@]host:port", or "environment"'


@dataclass(frozen=True)
class Proxy:
    place: Destination
    credentials: str = field(default="", repr=False)
    """The value of Proxy-Authorization."""


def configured(text: str, environ: Mapping[str, str]) -> Proxy:
    """ConfigError if it is none that can be used."""
    if text == ENVIRONMENT:
        text = environ.get("HTTPS_PROXY") or environ.get("https_proxy") or ""
        if not text:
            raise ConfigError(WHERE, '"environment", but HTTPS_PROXY is not set', _FORM)
    try:
        return parse(text)
    except (ValueError, Malformed):  # not shown: it may hold a password
        raise ConfigError(WHERE, "is no proxy's URL", _FORM) from None


def parse(text: str) -> Proxy:
    url = urlsplit(text)
    if url.scheme != "http" or url.path not in ("", "/") or url.query or url.fragment:
        raise ValueError
    credentials = ""
    if url.username is not None:
        pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
        credentials = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parse_authority(url.netloc.rpartition("@")[2], 80), credentials)


class ProxyDialer:
    """As `Dialer`, through the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def open(self, wanted: Destination, agent: str) -> Link:
        """Refusal for addresses that are not on the internet, and for names that can't be."""
        if is_address(wanted.host):
            if reason := why_refused(wanted.host):
                raise Refusal(f"{wanted.host} is {reason}: egress reaches the internet only", wanted.host)
        elif "." not in wanted.host:
            raise Refusal(f"{wanted.host} is no name of the internet", wanted.host)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._tunnel(wanted)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, h11.ProtocolError):
            raise Failed("the upstream proxy does not answer", executed="no") from None

    async def _tunnel(self, wanted: Destination) -> Link:
        place = self._proxy.place
        host = place.host if is_address(place.host) else await _first_address(place)
        link = await connect(host, place.port)
        try:
            status = await self._ask(link, wanted)
        except BaseException:
            link.writer.transport.abort()
            raise
        if status != 200:
            link.writer.transport.abort()
            raise Failed(f"the upstream proxy refused {wanted} with {status}", executed="no")
        return link

    async def _ask(self, link: Link, wanted: Destination) -> int:
        target = f"{bracketed(wanted.host)}:{wanted.port}"
        headers = [("Host", target)]
        if self._proxy.credentials:
            headers.append(("Proxy-Authorization", self._proxy.credentials))
        client = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        link.writer.write(client.send(h11.Request(method="CONNECT", target=target, headers=headers)) or b"")
        # Up to the end of the head and no further: what follows is the tunnel's.
        client.receive_data(await link.reader.readuntil(b"\r\n\r\n"))
        answer = client.next_event()
        if not isinstance(answer, h11.Response):
            raise h11.RemoteProtocolError("no answer to CONNECT")
        return answer.status_code


async def _first_address(place: Destination) -> str:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(place.host, place.port)
    return str(found[0][4][0])
