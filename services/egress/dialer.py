"""Touches the network: resolves a name, checks every address it has, connects to one that was checked.

A name is resolved once, and the connection goes to the very address that was looked at: a second answer
(DNS rebinding) is never asked for. A name of which one address is not on the internet is refused whole.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from beige.destinations import Destination, is_address
from beige.errors import Denied, Failed
from services.egress.addresses import why_refused

RESOLVE_S = 10.0
CONNECT_S = 10.0
"""For each address."""
MAX_TRIED = 4
RESOLVERS = 4
"""Threads, for each agent."""
READ_BYTES = 64 * 1024

Resolve = Callable[[str, int, str], Awaitable[Sequence[str]]]
"""Host, port and the agent that asks to addresses; OSError (gaierror) if there are none."""
Refused = Callable[[str], str]
"""Address to why it is not connected to; "" if it may be."""


@dataclass(frozen=True)
class Link:
    """A connection to the outside."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Refusal(Denied):
    """An address that is not on the internet. `address` is for the record: the agent, which may have asked
    for any name, does not learn the addresses of the operator's networks."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address


class SystemResolver:
    """As every program of this machine resolves: in threads, because the C library can't do otherwise. A
    thread can't be called back from a name that never answers, so each agent has a few of its own to jam."""

    def __init__(self) -> None:
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def __call__(self, host: str, port: int, agent: str) -> Sequence[str]:
        def look_up() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(entry[4][0]) for entry in found))

        if agent not in self._threads:
            self._threads[agent] = ThreadPoolExecutor(RESOLVERS, thread_name_prefix=f"resolve-{agent}")
        return await asyncio.get_running_loop().run_in_executor(self._threads[agent], look_up)

    def close(self) -> None:
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)


def refused(address: str) -> str:
    """Not on the internet, or an address of this machine itself, which may be a public one: its services are
    not meant for its agents."""
    return why_refused(address) or ("this machine" if is_own(address) else "")


def is_own(address: str) -> bool:
    """Only an address of one's own can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


class Dialer:
    """Direct connections: what this process is there for."""

    def __init__(self, resolve: Resolve, refused: Refused = refused) -> None:
        self._resolve, self._refused = resolve, refused

    async def open(self, wanted: Destination, agent: str) -> Link:
        """Refusal: it leads to a place that is not on the internet. Failed: no such name, no answer."""
        addresses = [wanted.host] if is_address(wanted.host) else await self._addresses(wanted, agent)
        for address in addresses:
            if reason := self._refused(address):
                raise Refusal(f"{wanted.host} leads to {reason}: egress reaches the internet only", address)
        failure = "it has no address"
        for address in addresses[:MAX_TRIED]:
            try:
                return await connect(address, wanted.port)
            except TimeoutError:
                failure = "no answer"
            except OSError as error:
                failure = error.strerror or "the connection failed"
        raise Failed(f"{wanted} can't be reached: {failure}", executed="no")

    async def _addresses(self, wanted: Destination, agent: str) -> Sequence[str]:
        try:
            async with asyncio.timeout(RESOLVE_S):
                return await self._resolve(wanted.host, wanted.port, agent)
        except TimeoutError:
            raise Failed(f"the name {wanted.host} could not be resolved in time", executed="no") from None
        except (OSError, UnicodeError):
            raise Failed(f"the name {wanted.host} can't be resolved", executed="no") from None


async def connect(address: str, port: int) -> Link:
    """To an address, not a name: nothing is resolved here. OSError, TimeoutError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    raw = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(raw, (address, port))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=raw, limit=READ_BYTES)
    except BaseException:
        raw.close()
        raise
    return Link(reader, writer)
