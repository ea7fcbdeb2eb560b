"""A proxy of the operator's: how it is written, how it is asked, what is still refused."""

import asyncio
import contextlib
import logging

import pytest

from beige.destinations import Destination
from beige.errors import ConfigError, Denied, Failed
from services.egress.upstream import Proxy, ProxyDialer, configured

GOOD = {
    "http://proxy.example:3128": ("proxy.example", 3128, ""),
    "http://proxy.example": ("proxy.example", 80, ""),
    "http://[2001:db8::1]:8080/": ("2001:db8::1", 8080, ""),
    "http://u:p%40ss@10.0.0.1:3128": ("10.0.0.1", 3128, "Basic dTpwQHNz"),
}


@pytest.mark.parametrize(("text", "expected"), GOOD.items())
def test_what_a_proxy_is(text, expected):
    proxy = configured(text, {})
    assert (proxy.place.host, proxy.place.port, proxy.credentials) == expected
    assert "dTpw" not in repr(proxy)


@pytest.mark.parametrize(
    "text", ["https://p:1", "socks5://p:1", "p:3128", "http://", "http://p:1/x", "environment"]
)
def test_what_is_none_is_refused_without_showing_it(text):
    with pytest.raises(ConfigError, match=r"egress\.upstreamProxy") as caught:
        configured(text, {})
    assert text == "environment" or text not in str(caught.value).replace("http://[user", "")


def test_the_environments_proxy_is_used_only_if_asked_for():
    assert configured("environment", {"HTTPS_PROXY": "http://p.example:1"}).place.port == 1


class Upstream:
    """A proxy that answers every CONNECT alike, then echoes."""

    def __init__(self, answer):
        self.answer, self.asked, self._serving = answer, [], []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader, writer):
        self._serving.append(asyncio.current_task())
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        with contextlib.suppress(ConnectionError):
            writer.write(self.answer)
            while data := await reader.read(100):
                writer.write(data)
        writer.transport.abort()


def through(answer, host="a.example"):
    async def main():
        async with Upstream(answer) as upstream:
            dialer = ProxyDialer(Proxy(Destination("127.0.0.1", upstream.port), "Basic eDp5"))
            link = await dialer.open(Destination(host, 443), "travel")
            link.writer.write(b"tunnel")
            received = await link.reader.readexactly(6)
            link.writer.close()
            await link.writer.wait_closed()
            return upstream.asked, received

    return asyncio.run(main())


def test_it_is_asked_for_a_tunnel_with_its_password_and_the_first_bytes_are_not_lost():
    asked, received = through(b"HTTP/1.1 200 OK\r\n\r\nfirst!")
    assert received == b"first!"
    assert asked[0].startswith(b"CONNECT a.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic eDp5\r\n" in asked[0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "refused a.example:443 with 407"),
        (b"nonsense\r\n\r\n", "does not answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000, "does not answer"),
    ],
)
def test_a_proxy_that_says_no_or_nonsense(answer, said, caplog):
    with caplog.at_level(logging.CRITICAL), pytest.raises(Failed, match=said):
        through(answer)


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "169.254.169.254", "localhost", "intranet"])
def test_what_can_not_be_on_the_internet_is_not_even_asked_for(host):
    with pytest.raises(Denied):
        asyncio.run(ProxyDialer(Proxy(Destination("127.0.0.1", 9))).open(Destination(host, 443), "travel"))
